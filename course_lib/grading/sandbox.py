"""A place to run what a student wrote: bubblewrap, with processes, network and files of its own, and limits on them.

Inside there is Python, the library without its checks, and a small scratch folder. There is no other student, no
solution, no gradebook, no network but loopback. Nothing outlives it: its first process takes all others along.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from dataclasses import dataclass
from pathlib import Path

from course_lib.checks.inside.runner import Submission
from course_lib.grading.guard import Guard
from course_lib.grading.limits import Limits
from course_lib.launchers.local import start_method

PACKAGE = Path(__file__).resolve().parent.parent
INSIDE = PACKAGE / "checks" / "inside"
SLOTS = 64  # submissions that one process may run at a time
CPUS = "/sys/devices/system/cpu"  # where torch looks how many there are
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache")
PYTHON = tuple(dict.fromkeys([sys.base_prefix, sys.prefix, sysconfig.get_path("purelib")]))
HIDDEN = (PACKAGE.parent / "solutions", PACKAGE.parent / "tests")  # if they lie in what is shown


class NoSandbox(RuntimeError):
    """Submissions cannot be run safely here; the sentence says what to install."""


@dataclass(frozen=True)
class SandboxResult:
    """What came out of a sandbox, line by line, and why it ended early, if it did."""

    lines: list[bytes]
    reason: str = ""
    by_clock: bool = False  # whether nothing but its time was over


def run(
    submission: Submission,
    limits: Limits,
    *,
    slot: int = 0,
    sandboxed: bool = True,
    stop: threading.Event | None = None,
) -> SandboxResult:
    """Run a submission to its end, to its limits or until `stop`. Two at the same time need different slots."""
    command = [*(_bubblewrap(limits, slot) if sandboxed else ()), sys.executable, "-I", "-c", START]
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": "/tmp", "COURSE_LIB_START_METHOD": start_method()}
    where = "/course" if sandboxed else str(PACKAGE.parent)
    process = subprocess.Popen(
        [*command, where, f"course_lib.checks{'' if sandboxed else '.inside'}.runner"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    guard = Guard(process, limits, stop or threading.Event())
    try:
        first = {"limits": limits.of_resource() if sandboxed else {}, "modules": submission.modules}
        lines = guard.converse(json.dumps(first).encode() + b"\n" + submission.packed())
    finally:
        guard.end()
    return SandboxResult(lines, guard.reason, guard.by_clock)


# Isolated mode knows neither the current folder nor PYTHONPATH: nothing that lies about is imported in their place.
START = "import sys, importlib; sys.path.insert(0, sys.argv[1]); importlib.import_module(sys.argv[2]).main()"


def check_sandbox() -> None:
    """Raise `NoSandbox` where submissions cannot be run safely."""
    for program in ("bwrap", "setpriv") if os.geteuid() == 0 else ("bwrap",):
        if shutil.which(program) is None:
            raise NoSandbox(
                f"{program} is not installed, so submissions would run with your rights: they could read the solutions "
                "and other submissions, change grades and use the network. Install bubblewrap (apt-get install "
                "bubblewrap), or, for submissions that you trust like your own code, give --no-sandbox"
            )
    tried = subprocess.run([*_bubblewrap(Limits(), 0), "true"], capture_output=True, text=True)
    if tried.returncode:
        raise NoSandbox(f"bubblewrap does not work here: {tried.stderr.strip()}. Allow user namespaces, or see --help")


def user(slot: int) -> int:
    """An id that nobody has, for what is run in this slot of this process.

    A limit on processes does not bind root, and it counts all of a user's processes, in whichever sandbox they are: a
    fork bomb must not take those of another submission, of this class or of one that is graded beside it.
    """
    return 0x7000_0000 + SLOTS * os.getpid() + slot


def shows(path: Path) -> bool:
    """Whether a submission could see what lies there."""
    return any(path.resolve().is_relative_to(Path(folder).resolve()) for folder in (*SYSTEM, *PYTHON))


def _bubblewrap(limits: Limits, slot: int) -> list[str]:
    root = os.geteuid() == 0
    command = ["bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"]
    command += [] if root else ["--unshare-user"]
    command += ["--proc", "/proc", "--dev", "/dev"]
    for folder in ("/tmp", "/dev/shm"):  # before what is shown: Python and the course may lie in the real /tmp
        command += ["--perms", "1777", "--size", str(limits.disk), "--tmpfs", folder]
    for folder in SYSTEM:
        command += ["--ro-bind-try", folder, folder]
    for folder in (*PYTHON, CPUS):
        command += _bind(folder, folder)
    for folder in filter(shows, HIDDEN):
        command += ["--tmpfs", str(folder)] if folder.is_dir() else []
    command += _bind(str(PACKAGE), "/course/course_lib")
    for library in ("/course/course_lib", *filter(shows, [PACKAGE])):
        command += ["--ro-bind", str(INSIDE), f"{library}/checks", "--tmpfs", f"{library}/grading"]
    command += ["--setenv", "HOME", "/tmp", "--setenv", "COURSE_LIB_START_METHOD", "forkserver", "--chdir", "/tmp"]
    if root:
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        command += ["setpriv", f"--reuid={user(slot)}", f"--regid={user(slot)}", "--clear-groups"]
        command += ["--no-new-privs", "--bounding-set=-all"]
    return command


def _bind(source: str, place: str) -> list[str]:
    """Show a folder, read only, in folders above it that everybody may pass, whoever may in the real ones."""
    above = [str(folder) for folder in reversed(Path(place).parents) if str(folder) != "/"]
    return [word for folder in above for word in ("--perms", "0755", "--dir", folder)] + ["--ro-bind", source, place]
