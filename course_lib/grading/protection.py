"""Test which protections against submissions work on this machine, for `course grade --explain`."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from course_lib.checks.inside import own_folder
from course_lib.grading import cgroups, sandbox, seccomp
from course_lib.grading.limits import Limits
from course_lib.runtime import machine


@dataclass(frozen=True)
class Protection:
    """A protection and whether it works here; if not, `otherwise` is what happens instead."""

    what: str
    holds: bool
    otherwise: str = ""

    def __str__(self) -> str:
        return f"  {'yes' if self.holds else 'no':<4} {self.what}" + ("" if self.holds else f": {self.otherwise}")


def protections() -> list[Protection]:
    """Try each protection and return the results."""
    if shutil.which("bwrap") is None:
        return [Protection("submissions run in a sandbox", False, "install bubblewrap (apt-get install bubblewrap)")]
    inside = _inside()
    group = cgroups.make_group(Limits(), 0)
    if group:
        group.remove()
    alone = os.geteuid() == 0
    return [
        Protection(
            "submissions run in a sandbox: separate files, processes and network",
            bool(inside),
            "bubblewrap does not work here: allow user namespaces",
        ),
        Protection(
            f"the kernel limits memory, processes and share of the cores (cgroups, version {cgroups.version()})",
            group is not None,
            "only root, or the owner of a control group, can; the grader checks memory ten times a second instead, and "
            "a submission can use more in between",
        ),
        Protection(
            "system calls that no exercise needs are refused (seccomp)",
            "Seccomp:\t2" in inside and seccomp.filter_program() is not None,
            "we do not know their numbers on this machine",
        ),
        Protection("no namespaces and no mounts inside", "nested: no" in inside, "submissions can create them here"),
        Protection("only /tmp and /dev/shm are writable, 64 MB each", "written: no" in inside, "others are, too"),
        Protection(
            "the ranks of a submission share no files (Landlock)",
            own_folder.version() > 0,
            "this kernel has no Landlock; ranks can exchange files that no meter counts",
        ),
        Protection("keyrings are out of reach", "keyring: no" in inside, "submissions share your keyring"),
        Protection(
            "each submission has its own user id",
            alone,
            "only root can assign one; those that run side by side share your limits in the kernel, and can slow each "
            "other down: --jobs 1 keeps them apart",
        ),
        Protection(
            "time counts only while a submission can run",
            Path("/proc/self/schedstat").exists(),
            "this kernel does not report it; four seconds of wall time count as one",
        ),
    ]


def say_what_is_missing() -> None:
    """Print a line for each protection that does not work here, before a class is graded without it."""
    for each in protections():
        if not each.holds:
            print(f"course: not enforced here: {each.what}: {each.otherwise}", file=sys.stderr)


# Runs inside the sandbox, with only the standard library.
TRIAL = """
import ctypes, os, platform
libc = ctypes.CDLL(None)
number = 250 if platform.machine() == "x86_64" else 219
written = [folder for folder in ("/", "/dev", "/course") if os.access(folder, os.W_OK)]
print("nested:", "yes" if libc.unshare(0x10000000) == 0 else "no")
print("written:", "yes" if written else "no")
print("keyring:", "yes" if libc.syscall(number, 0, -3, 0) >= 0 else "no")
print(open("/proc/self/status").read())
"""


def _inside() -> str:
    return sandbox.try_inside([sys.executable, "-I", "-c", TRIAL]).stdout


def explain() -> str:
    """Return a line per protection, and how many submissions run at a time."""
    lines = ["Protections on this machine while a class is graded:", *map(str, protections())]
    return "\n".join([*lines, f"{machine.cores()} submissions run at a time by default: one per available core."])
