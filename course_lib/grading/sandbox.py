"""Run student code in bubblewrap, with its own process, network and file namespaces, and resource limits.

Inside the sandbox are Python, the library without its checks and lessons, and a small scratch folder. There are no
other students' files, no solutions, no gradebook, and no network except loopback. Nothing outlives the sandbox: when
its first process dies, all the others die with it.
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
from course_lib.grading import cgroups, seccomp
from course_lib.grading.guard import Guard
from course_lib.grading.limits import Limits
from course_lib.launcher.notebook.launch import start_method
from course_lib.runtime.course_files import BROUGHT_ALONG

PACKAGE = Path(__file__).resolve().parent.parent
INSIDE = PACKAGE / "checks" / "inside"
IDS = 1 << 14  # user ids per grader process
CPUS = "/sys/devices/system/cpu"  # where torch looks up the number of CPUs
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache")
PYTHON = tuple(dict.fromkeys([sys.base_prefix, sys.prefix, sysconfig.get_path("purelib")]))
PROJECT = PACKAGE.parent


class NoSandbox(ValueError):
    """Submissions cannot run safely here; the message says what to install."""


@dataclass(frozen=True)
class SandboxResult:
    """The output lines of a sandbox, and why it ended early, if it did."""

    lines: list[bytes]
    reason: str = ""
    by_clock: bool = False  # whether a time limit was the only reason
    rested: bool = False  # whether it used little CPU for a long time: a rerun on a quieter machine would do the same


def run(
    submission: Submission,
    limits: Limits,
    *,
    number: int = 0,
    sandboxed: bool = True,
    stop: threading.Event | None = None,
) -> SandboxResult:
    """Run a submission until it ends, hits a limit or `stop` is set. Each needs a unique `number`."""
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
    return SandboxResult(lines, guard.reason, guard.by_clock, guard.rested())


def where(sandboxed: bool) -> str:
    """Return the folder that contains the library."""
    return "/course" if sandboxed else str(PACKAGE.parent)


# Isolated mode ignores the current folder and PYTHONPATH, so no stray module shadows ours.
START = "import sys, importlib; sys.path.insert(0, sys.argv[1]); importlib.import_module(sys.argv[2]).main()"


def allow_many_files() -> None:
    """Raise this process's limit on open files as far as possible.

    Without root, submissions run as our user. One of them can fill the number of descriptors in transit between this
    user's processes up to its own limit, and then only processes with a higher limit can still pass any.
    """
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def check_sandbox() -> None:
    """Raise `NoSandbox` if submissions cannot run safely."""
    if not sys.platform.startswith("linux"):
        raise NoSandbox(
            "the sandbox for submissions needs Linux: grade on a Linux machine, in a container or, on Windows, in WSL"
        )
    for program in ("bwrap", "setpriv") if os.geteuid() == 0 else ("bwrap",):
        if shutil.which(program) is None:
            raise NoSandbox(
                f"{program} is not installed, so submissions would run with your permissions: they could read the "
                "solutions and other submissions, change grades and use the network. Install bubblewrap (apt-get "
                "install bubblewrap), or, if you trust the submissions like your own code, pass --no-sandbox"
            )
    tried = try_inside(["true"])
    if tried.returncode:
        raise NoSandbox(f"bubblewrap does not work here: {tried.stderr.strip()}. Allow user namespaces, or see --help")


def try_inside(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a sandbox like a submission's."""
    guarded = seccomp.open_filter()
    passed = [] if guarded is None else [guarded]
    try:
        inside = [*_bubblewrap(Limits(), 0, guarded), *command]
        return subprocess.run(inside, capture_output=True, text=True, pass_fds=passed, stdin=subprocess.DEVNULL)
    finally:
        for descriptor in passed:
            os.close(descriptor)


def user(number: int) -> int:
    """Return an unused user id for submission `number` of this process.

    RLIMIT_NPROC does not apply to root, and it counts all processes of a user across sandboxes: a fork bomb must not
    use up the processes of other submissions, in this class or in one graded at the same time.
    """
    return 0x8000_0000 + IDS * (os.getpid() % 0x1_0000) + number % IDS


def shows(path: Path) -> bool:
    """Whether a submission could see this path."""
    return any(path.resolve().is_relative_to(Path(folder).resolve()) for folder in (*SYSTEM, *PYTHON))


def _bubblewrap(limits: Limits, number: int, guarded: int | None = None) -> list[str]:
    """Return the command prefix that starts a sandbox; `guarded` is the file descriptor of the seccomp filter."""
    root = os.geteuid() == 0
    command = ["bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"]
    # Without root, bubblewrap's own first process would have the submission's user id: a submission could write into
    # its memory, and to the pipe from which we read the results.
    command += [] if root else ["--unshare-user", "--disable-userns", "--as-pid-1"]
    command += [] if guarded is None else ["--seccomp", str(guarded)]
    command += ["--proc", "/proc", "--dev", "/dev"]
    for folder in ("/tmp", "/dev/shm"):  # before the binds: Python and the course may be in the real /tmp
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
    command += ["--remount-ro", "/dev", "--remount-ro", "/"]  # mounts without a size limit must not be writable
    command += ["--setenv", "HOME", "/tmp", "--setenv", "COURSE_LIB_START_METHOD", "forkserver", "--chdir", "/tmp"]
    if root:
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        command += ["setpriv", f"--reuid={user(number)}", f"--regid={user(number)}", "--clear-groups"]
        command += ["--no-new-privs", "--bounding-set=-all"]
    return command


def _is_clone() -> bool:
    """Whether the library runs from a clone of the project rather than from site-packages."""
    return (PROJECT / "pyproject.toml").exists()


def _hide_project() -> list[str]:
    """Hide the project if a bound folder contains it, and bind Python again if it is inside the project."""
    if not (_is_clone() and shows(PROJECT)):
        return []
    within = [folder for folder in PYTHON if Path(folder).resolve().is_relative_to(PROJECT)]
    # Bind into the empty folder before remounting it read-only.
    return [
        *("--tmpfs", str(PROJECT)),
        *(word for folder in within for word in _bind(folder, folder)),
        *("--remount-ro", str(PROJECT)),
    ]


def _empty(folder: str) -> list[str]:
    return ["--tmpfs", folder, "--remount-ro", folder]


def _bind(source: str, place: str) -> list[str]:
    """Bind a folder read-only, and make its parents accessible to everyone, whatever their real permissions."""
    above = [str(folder) for folder in reversed(Path(place).parents) if str(folder) != "/"]
    return [word for folder in above for word in ("--perms", "0755", "--dir", folder)] + ["--ro-bind", source, place]
