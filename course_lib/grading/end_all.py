"""What a grader becomes when somebody interrupts it: a program that ends all which the grader has started.

It is the same process with another program in it, so that everything is still its child, and none of the grader's
threads is there any more to start something new. Run as a file, without the library: nothing is imported for long.

python end_all.py FOLDER [GROUP ...]: the temporary folder to remove, and patterns of the kernel's groups.
"""

import contextlib
import glob
import os
import shutil
import signal
import sys
import time

END_WITHIN = 10.0  # seconds; it takes some tenths of one, but nothing is to be left on the busiest machine


def children(pid: int) -> list[int]:
    """The processes that this one has started."""
    found: list[int] = []
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        with contextlib.suppress(OSError), open(path) as file:
            found += map(int, file.read().split())
    return found


def descendants(pid: int) -> list[int]:
    """The processes that come from this one, in any generation."""
    return [each for child in children(pid) for each in (child, *descendants(child))]


def end_descendants(deadline: float) -> None:
    """Kill every process that comes from this one, and take note of its end."""
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def remove_groups(patterns: list[str], deadline: float) -> None:
    """The groups of what has been ended; the kernel needs a moment until they are empty."""
    while (left := [path for pattern in patterns for path in glob.glob(pattern)]) and time.monotonic() < deadline:
        for path in left:
            with contextlib.suppress(OSError):
                os.rmdir(path)
        time.sleep(0.005)


def main() -> None:
    """End everything, in the time that somebody waits."""
    folder, *groups = sys.argv[1:]
    deadline = time.monotonic() + END_WITHIN
    end_descendants(deadline)
    remove_groups(groups, deadline)
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit(130)


if __name__ == "__main__":
    main()
