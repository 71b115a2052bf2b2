"""A place to run what a student wrote: bubblewrap, with processes, network and files of its own, and limits on them.

Inside there is Python, the library without its checks, and a small scratch folder. There is no other student, no
solution, no gradebook, no network but loopback. Nothing outlives it: its first process takes all others along.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader, BufferedWriter
from pathlib import Path

from course_lib.checks.inside.runner import Submission

PACKAGE = Path(__file__).resolve().parent.parent
INSIDE = PACKAGE / "checks" / "inside"
SLOTS = 64  # submissions that one process may run at a time
GIGABYTE = 1 << 30
CPUS = "/sys/devices/system/cpu"  # where torch looks how many there are
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache")
PYTHON = tuple(dict.fromkeys([sys.base_prefix, sys.prefix, sysconfig.get_path("purelib")]))
HIDDEN = (PACKAGE.parent / "solutions", PACKAGE.parent / "tests")  # if they lie in what is shown


class NoSandbox(RuntimeError):
    """Submissions cannot be run safely here; the sentence says what to install."""


@dataclass(frozen=True)
class Limits:
    """What one submission may use."""

    seconds: float = 90.0
    memory: int = 16 * GIGABYTE  # that a process may map: torch with CUDA maps several before it does anything
    total_memory: int = 4 * GIGABYTE  # in use, of all its processes together
    processes: int = 200
    disk: int = 64 << 20
    output: int = 32 << 20

    def of_resource(self) -> dict[str, int]:
        """Those that the kernel enforces, for every process of the submission."""
        return {
            "RLIMIT_AS": self.memory,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_FSIZE": self.disk,
            "RLIMIT_CORE": 0,
        }


@dataclass(frozen=True)
class SandboxResult:
    """What came out of a sandbox, line by line, and why it ended early, if it did."""

    lines: list[bytes]
    reason: str = ""


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
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": "/tmp", "COURSE_LIB_START_METHOD": "forkserver"}
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
        first = {"limits": limits.of_resource(), "modules": submission.modules}
        lines = guard.converse(json.dumps(first).encode() + b"\n" + submission.packed())
    finally:
        guard.end()
    return SandboxResult(lines, guard.reason)


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


class Guard:
    """Watches one sandbox from outside: its time, its memory, and how much it says."""

    def __init__(self, process: subprocess.Popen[bytes], limits: Limits, stop: threading.Event) -> None:
        self.process, self.limits, self.stop, self.reason = process, limits, stop, ""
        assert isinstance(process.stdin, BufferedWriter)
        assert isinstance(process.stdout, BufferedReader)
        self._stdin, self._stdout = process.stdin, process.stdout
        self._deadline = time.monotonic() + limits.seconds
        threading.Thread(target=self._watch, daemon=True).start()

    def converse(self, job: bytes) -> list[bytes]:
        """Send the job; return all lines of the answer. A line that was cut off is left out."""
        threading.Thread(target=self._send, args=(job,), daemon=True).start()
        said = bytearray()
        while piece := self._stdout.read1(1 << 16):
            said += piece
            if len(said) > self.limits.output:
                self._stop("it wrote too much")
                break
        *whole, _ = bytes(said).split(b"\n")
        return whole

    def end(self) -> None:
        """Leave nothing running: when the sandbox's first process is gone, so are all the others in it."""
        deadline = time.monotonic() + 10
        while self.process.poll() is None and time.monotonic() < deadline:
            for first in children(self.process.pid):  # bubblewrap may only be about to start it
                with contextlib.suppress(OSError):
                    os.kill(first, signal.SIGKILL)
            time.sleep(0.01)
        self.process.kill()
        self.process.wait()
        self._stdout.close()

    def _send(self, job: bytes) -> None:
        try:
            with self._stdin as stdin:
                stdin.write(job)
        except OSError:
            pass  # it ended before it had read everything

    def _watch(self) -> None:
        while self.process.poll() is None and not self.reason:
            if time.monotonic() > self._deadline:
                self._stop(f"it ran for more than {self.limits.seconds:g} s")
            elif sum(map(memory_of, descendants(self.process.pid))) > self.limits.total_memory:
                self._stop("it used too much memory")
            elif self.stop.wait(0.1):
                self._stop("somebody interrupted it")

    def _stop(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.end()


def children(pid: int) -> list[int]:
    """The processes that this one has started."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it may end, or a thread of it, while we look
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def descendants(pid: int) -> Iterator[int]:
    """The processes that come from this one, in any generation."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def memory_of(pid: int) -> int:
    """Bytes of memory that this process alone has, without what it shares with others."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")
