"""A place to run what a student wrote: bubblewrap, with processes, network and files of its own, and limits on them.

Inside there is Python, the library without its checks and lessons, and a small scratch folder. There is no other
student, no solution, no gradebook, no network but loopback. Nothing outlives it: its first process takes all others
along.
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
from course_lib.course_files import BROUGHT_ALONG
from course_lib.grading import cgroups, seccomp
from course_lib.grading.guard import Guard
from course_lib.grading.limits import Limits
from course_lib.launchers.local import start_method

PACKAGE = Path(__file__).resolve().parent.parent
INSIDE = PACKAGE / "checks" / "inside"
IDS = 1 << 14  # of users, for the submissions of one grader
CPUS = "/sys/devices/system/cpu"  # where torch looks how many there are
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache")
PYTHON = tuple(dict.fromkeys([sys.base_prefix, sys.prefix, sysconfig.get_path("purelib")]))
PROJECT = PACKAGE.parent


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
    number: int = 0,
    sandboxed: bool = True,
    stop: threading.Event | None = None,
) -> SandboxResult:
    """Run a submission to its end, to its limits or until `stop`. Each needs a number of its own."""
    guarded = seccomp.open_filter() if sandboxed else None
    group = cgroups.make_group(limits, number) if sandboxed else None
    command = [*(_bubblewrap(limits, number, guarded) if sandboxed else ()), sys.executable, "-I", "-c", START]
    command += [where(sandboxed), f"course_lib.checks{'' if sandboxed else '.inside'}.runner"]
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": "/tmp", "COURSE_LIB_START_METHOD": start_method()}
    process = subprocess.Popen(
        group.enter(command) if group else command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
        pass_fds=[guarded] if guarded is not None else [],
    )
    if guarded is not None:
        os.close(guarded)
    guard = Guard(process, limits, stop or threading.Event(), group)
    try:
        first = {"limits": limits.of_resource() if sandboxed else {}, "modules": submission.modules}
        lines = guard.converse(json.dumps(first).encode() + b"\n" + submission.packed())
    finally:
        guard.end()
        if group:
            group.remove()
    return SandboxResult(lines, guard.reason, guard.by_clock)


def where(sandboxed: bool) -> str:
    """The folder that has the library in it."""
    return "/course" if sandboxed else str(PACKAGE.parent)


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
    tried = try_inside(["true"])
    if tried.returncode:
        raise NoSandbox(f"bubblewrap does not work here: {tried.stderr.strip()}. Allow user namespaces, or see --help")


def try_inside(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program where submissions are run."""
    guarded = seccomp.open_filter()
    passed = [] if guarded is None else [guarded]
    try:
        inside = [*_bubblewrap(Limits(), 0, guarded), *command]
        return subprocess.run(inside, capture_output=True, text=True, pass_fds=passed, stdin=subprocess.DEVNULL)
    finally:
        for descriptor in passed:
            os.close(descriptor)


def user(number: int) -> int:
    """An id that nobody has, for the submission of this number of this process.

    A limit on processes does not bind root, and it counts all of a user's processes, in whichever sandbox they are: a
    fork bomb must not take those of another submission, of this class or of one that is graded beside it.
    """
    return 0x8000_0000 + IDS * (os.getpid() % 0x1_0000) + number % IDS


def shows(path: Path) -> bool:
    """Whether a submission could see what lies there."""
    return any(path.resolve().is_relative_to(Path(folder).resolve()) for folder in (*SYSTEM, *PYTHON))


def _bubblewrap(limits: Limits, number: int, guarded: int | None = None) -> list[str]:
    """The words before a command that put it into a sandbox; `guarded` is where the filter of system calls is read."""
    root = os.geteuid() == 0
    command = ["bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"]
    command += [] if root else ["--unshare-user", "--disable-userns"]
    command += [] if guarded is None else ["--seccomp", str(guarded)]
    command += ["--proc", "/proc", "--dev", "/dev"]
    for folder in ("/tmp", "/dev/shm"):  # before what is shown: Python and the course may lie in the real /tmp
        command += ["--perms", "1777", "--size", str(limits.disk), "--tmpfs", folder]
    for folder in SYSTEM:
        command += ["--ro-bind-try", folder, folder]
    for folder in (*PYTHON, CPUS):
        command += _bind(folder, folder)
    command += _hide_project()
    command += _bind(str(PACKAGE), "/course/course_lib")
    for library in ("/course/course_lib", *filter(shows, [] if _is_clone() else [PACKAGE])):
        command += ["--ro-bind", str(INSIDE), f"{library}/checks"]
        command += [*_empty(f"{library}/grading"), *_empty(f"{library}/lessons")]
        command += _empty(f"{library}/{BROUGHT_ALONG.name}") if BROUGHT_ALONG.is_dir() else []  # solutions, too
    command += ["--remount-ro", "/dev", "--remount-ro", "/"]  # what has no size of its own takes nothing
    command += ["--setenv", "HOME", "/tmp", "--setenv", "COURSE_LIB_START_METHOD", "forkserver", "--chdir", "/tmp"]
    if root:
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        command += ["setpriv", f"--reuid={user(number)}", f"--regid={user(number)}", "--clear-groups"]
        command += ["--no-new-privs", "--bounding-set=-all"]
    return command


def _is_clone() -> bool:
    """Whether the library lies in the project's folder, and is not one of many in the folder of what is installed."""
    return (PROJECT / "pyproject.toml").exists()


def _hide_project() -> list[str]:
    """Cover the whole project where it lies in what is shown; Python may lie in the project again."""
    if not (_is_clone() and shows(PROJECT)):
        return []
    within = [folder for folder in PYTHON if Path(folder).resolve().is_relative_to(PROJECT)]
    # What lies in an empty folder can only be put there before that is made read-only.
    return [
        *("--tmpfs", str(PROJECT)),
        *(word for folder in within for word in _bind(folder, folder)),
        *("--remount-ro", str(PROJECT)),
    ]


def _empty(folder: str) -> list[str]:
    return ["--tmpfs", folder, "--remount-ro", folder]


def _bind(source: str, place: str) -> list[str]:
    """Show a folder, read only, in folders above it that everybody may pass, whoever may in the real ones."""
    above = [str(folder) for folder in reversed(Path(place).parents) if str(folder) != "/"]
    return [word for folder in above for word in ("--perms", "0755", "--dir", folder)] + ["--ro-bind", source, place]
