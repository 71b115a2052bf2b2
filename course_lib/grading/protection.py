"""What keeps submissions in their place on this machine, each thing tried out: for `course grade --explain`."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from course_lib import machine
from course_lib.grading import cgroups, sandbox, seccomp
from course_lib.grading.limits import Limits


@dataclass(frozen=True)
class Protection:
    """One of the things that hold, or do not; `otherwise` says what does its work then."""

    what: str
    holds: bool
    otherwise: str = ""

    def __str__(self) -> str:
        return f"  {'yes' if self.holds else 'no':<4} {self.what}" + ("" if self.holds else f": {self.otherwise}")


def protections() -> list[Protection]:
    """Each in turn, found out by trying it."""
    if shutil.which("bwrap") is None:
        return [Protection("submissions run in a sandbox", False, "install bubblewrap (apt-get install bubblewrap)")]
    inside = _inside()
    group = cgroups.make_group(Limits(), 0)
    if group:
        group.remove()
    alone = os.geteuid() == 0
    return [
        Protection(
            "submissions run in a sandbox: files, processes and network of their own",
            bool(inside),
            "bubblewrap does not work here: allow user namespaces",
        ),
        Protection(
            f"the kernel limits memory, processes and share of the cores (cgroups, version {cgroups.version()})",
            group is not None,
            "no group may be made here; the grader looks ten times a second instead",
        ),
        Protection(
            "system calls that no exercise needs are refused (seccomp)",
            "Seccomp:\t2" in inside and seccomp.filter_program() is not None,
            "their numbers are not known for this machine",
        ),
        Protection("no namespaces and no mounts inside", "nested: no" in inside, "they can be made here"),
        Protection("nothing but /tmp and /dev/shm can be written, 64 MB each", "written: no" in inside, "more can be"),
        Protection("keyrings are out of reach", "keyring: no" in inside, "submissions share your keyring"),
        Protection("each submission has a user id of its own", alone, "only root may give one; all of them have yours"),
        Protection(
            "time counts only while nothing else keeps a submission from its work",
            Path("/proc/self/schedstat").exists(),
            "this kernel does not tell; four seconds on the clock count as one",
        ),
    ]


# Tried inside, with nothing but the standard library.
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
    """All of them, a line each, and how many submissions run at a time."""
    lines = ["What holds on this machine while a class is graded:", *map(str, protections())]
    return "\n".join([*lines, f"{machine.cores()} at a time by default: one for each core that may be used here."])
