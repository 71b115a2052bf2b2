"""Control groups: the kernel counts and limits what a submission uses, whatever its processes do.

There are two kinds, and a machine may have either: version 2, one tree for everything, and version 1, a tree for each
kind of thing. A group is made below the one that the grader is in, where that is allowed.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from course_lib.grading.limits import Limits
from course_lib.machine import CONTROL_GROUPS

PREFIX = "course-grade-"
OURS = "course-grader"  # the group, in version 2, that the grader itself is in
WANTED = ("memory", "pids", "cpu")
# Enters the groups, then becomes what is to be run in them.
ENTER = 'for group in $GROUPS_TO_ENTER; do echo $$ > "$group/cgroup.procs" || exit 125; done; exec "$@"'


@dataclass(frozen=True)
class Group:
    """The groups of one submission: one folder in version 2, one for each controller in version 1."""

    folders: tuple[Path, ...]
    version: int

    def enter(self, command: list[str]) -> list[str]:
        """The same command, in the group from its first moment on."""
        script = ENTER.replace("$GROUPS_TO_ENTER", " ".join(f"'{folder}'" for folder in self.folders))
        return ["/bin/sh", "-c", script, "sh", *command]

    def out_of_memory(self) -> bool:
        """Whether the kernel has ended a process for want of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return any(line.split() > ["oom_kill", "0"] for line in self._lines(name) if line.startswith("oom_kill "))

    def cpu_seconds(self) -> float | None:
        """Processor time of all processes that were ever in it."""
        if self.version == 2:
            return next((int(line.split()[1]) / 1e6 for line in self._lines("cpu.stat") if "usage_usec" in line), None)
        return next((int(line) / 1e9 for line in self._lines("cpuacct.usage")), None)

    def remove(self) -> None:
        """When all its processes are gone; that takes the kernel a moment."""
        deadline = time.monotonic() + 2
        for folder in self.folders:
            while folder.exists() and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.01)

    def _lines(self, name: str) -> list[str]:
        for folder in self.folders:
            with contextlib.suppress(OSError):
                return (folder / name).read_text().splitlines()
        return []


def make_group(limits: Limits, number: int) -> Group | None:
    """A group with these limits, or None where none may be made, or the kernel does not limit memory by it."""
    version, parents = _parents()
    name = f"{PREFIX}{os.getpid()}-{number}-{time.monotonic_ns()}"
    made: list[Path] = []
    try:
        for parent in parents:
            (parent / name).mkdir()
            made.append(parent / name)
        group = Group(tuple(made), version)
        if _set_limits(group, limits):
            return group
    except OSError:
        pass
    Group(tuple(made), version).remove()
    return None


def sweep_groups() -> None:
    """Remove the groups of graders that were killed before they could do it."""
    for parent in _parents()[1]:
        for folder in parent.glob(f"{PREFIX}*"):
            if not Path("/proc", folder.name.removeprefix(PREFIX).split("-")[0]).exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()


def own_groups() -> list[str]:
    """Patterns of the folders of all groups that this process has made."""
    return [str(parent / f"{PREFIX}{os.getpid()}-*") for parent in _parents()[1]]


def _set_limits(group: Group, limits: Limits) -> bool:
    """Whether memory is limited now: the others are tried, and not needed."""
    memory, group_kill = ("memory.max", "memory.oom.group") if group.version == 2 else ("memory.limit_in_bytes", None)
    limited = _write(group, memory, limits.total_memory)
    for name in ("memory.swap.max",) if group.version == 2 else ():
        _write(group, name, 0)
    if group_kill:
        _write(group, group_kill, 1)
    _write(group, "pids.max", 2 * limits.processes)  # its threads count here, too: those of a rank are some twenty
    return limited


def _write(group: Group, name: str, value: int) -> bool:
    for folder in group.folders:
        if (folder / name).exists():
            with contextlib.suppress(OSError):
                (folder / name).write_text(str(value))
                return True
    return False


def version() -> int:
    """Which kind this machine has."""
    return 2 if (CONTROL_GROUPS / "cgroup.controllers").exists() else 1


def _parents() -> tuple[int, list[Path]]:
    """The version, and the folders in which a group can be made: those of this process."""
    mine = [line.split(":", 2) for line in _read(Path("/proc/self/cgroup")).splitlines()]
    if (CONTROL_GROUPS / "cgroup.controllers").exists():
        path = next((path for number, _, path in mine if number == "0"), "/")
        return 2, _delegated(CONTROL_GROUPS / path.lstrip("/"))
    parents = []
    for wanted in (*WANTED, "cpuacct"):
        for _, controllers, path in mine:
            if wanted in controllers.split(","):
                folder = CONTROL_GROUPS / controllers / path.lstrip("/")
                parents += [folder] if os.access(folder, os.W_OK) and folder not in parents else []
    return 1, parents


def _delegated(own: Path) -> list[Path]:
    """In version 2 processes are only in leaves: the grader goes into one, and its group may have others beside it.

    That works where nobody else is in its group; root can make groups at the top.
    """
    group = own.parent if own.name == OURS else own
    if group != CONTROL_GROUPS and _move(group / OURS) and not _hand_on(group):
        _move(group)
        with contextlib.suppress(OSError):
            (group / OURS).rmdir()
        group = CONTROL_GROUPS
    return [group] if _hand_on(group) else []


def _move(group: Path) -> bool:
    """Go into this group, which is made if need be; whether that was allowed."""
    try:
        group.mkdir(exist_ok=True)
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        return False
    return True


def _hand_on(group: Path) -> bool:
    """Let groups below this one limit what they use; whether that is allowed."""
    known = _read(group / "cgroup.controllers").split()
    try:
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in WANTED if name in known))
    except OSError:
        return False
    return "memory" in known


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
