"""Control groups: the kernel counts and limits what a submission uses, whatever its processes do.

A machine has cgroups v2 (one tree for all controllers) or v1 (one tree per controller). We make our groups below the
grader's group, where that is allowed.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from course_lib.grading.limits import Limits
from course_lib.runtime.machine import CONTROL_GROUPS

PREFIX = "course-grade-"
OURS = "course-grader"  # in v2, the group of the grader itself
WANTED = ("memory", "pids", "cpu")
# Enters the groups, then execs the command.
ENTER = 'for group in $GROUPS_TO_ENTER; do echo $$ > "$group/cgroup.procs" || exit 125; done; exec "$@"'


@dataclass(frozen=True)
class Group:
    """The groups of one submission: one folder in v2, one per controller in v1."""

    folders: tuple[Path, ...]
    version: int

    def enter(self, command: list[str]) -> list[str]:
        """Return a command that enters the group and then runs `command`."""
        script = ENTER.replace("$GROUPS_TO_ENTER", " ".join(f"'{folder}'" for folder in self.folders))
        return ["/bin/sh", "-c", script, "sh", *command]

    def out_of_memory(self) -> bool:
        """Whether the kernel's OOM killer has killed a process in the group."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return any(line.split() > ["oom_kill", "0"] for line in self._lines(name) if line.startswith("oom_kill "))

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of all processes that were ever in the group, or None if unknown."""
        if self.version == 2:
            return next((int(line.split()[1]) / 1e6 for line in self._lines("cpu.stat") if "usage_usec" in line), None)
        return next((int(line) / 1e9 for line in self._lines("cpuacct.usage")), None)

    def memory(self) -> int:
        """Return the bytes of memory that its processes use, without the page cache, which the kernel can reclaim."""
        lines = [line.split() for line in self._lines("memory.stat")]
        return sum(int(value) for name, value in lines if name in ("total_rss", "total_shmem"))

    def remove(self) -> None:
        """Remove the group. The kernel takes a moment to empty it after its processes have died."""
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
    """Make a group with these limits. Returns None if that is not allowed or memory cannot be limited."""
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
    """Remove the groups of graders that were killed before they could clean up."""
    for parent in _parents()[1]:
        for folder in parent.glob(f"{PREFIX}*"):
            if not Path("/proc", folder.name.removeprefix(PREFIX).split("-")[0]).exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()


def own_groups() -> list[str]:
    """Return glob patterns of the folders of all groups that this process has made."""
    return [str(parent / f"{PREFIX}{os.getpid()}-*") for parent in _parents()[1]]


def _set_limits(group: Group, limits: Limits) -> bool:
    """Set the limits and return whether memory is limited; the other limits are best effort."""
    memory, group_kill = ("memory.max", "memory.oom.group") if group.version == 2 else ("memory.limit_in_bytes", None)
    limited = _write(group, memory, limits.total_memory)
    for name in ("memory.swap.max",) if group.version == 2 else ():
        _write(group, name, 0)
    if group_kill:
        _write(group, group_kill, 1)
    _write(group, "pids.max", 2 * limits.processes)  # this counts threads, too, and a rank has about twenty
    return limited


def _write(group: Group, name: str, value: int) -> bool:
    for folder in group.folders:
        if (folder / name).exists():
            with contextlib.suppress(OSError):
                (folder / name).write_text(str(value))
                return True
    return False


def version() -> int:
    """Return this machine's version of cgroups, 1 or 2."""
    return 2 if (CONTROL_GROUPS / "cgroup.controllers").exists() else 1


def _parents() -> tuple[int, list[Path]]:
    """Return the version, and the folders of this process's groups, in which we can make new ones."""
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
    """Return the v2 group in which we can make groups, if any.

    In v2, only leaves can hold processes: the grader moves into a leaf, and new groups become its siblings. That works
    if no other process is in the grader's group; otherwise, root can make groups at the top.
    """
    group = own.parent if own.name == OURS else own
    if group != CONTROL_GROUPS and _move(group / OURS) and not _hand_on(group):
        _move(group)
        with contextlib.suppress(OSError):
            (group / OURS).rmdir()
        group = CONTROL_GROUPS
    return [group] if _hand_on(group) else []


def _move(group: Path) -> bool:
    """Move this process into a group, making it if needed. Returns whether that was allowed."""
    try:
        group.mkdir(exist_ok=True)
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        return False
    return True


def _hand_on(group: Path) -> bool:
    """Enable our controllers for the groups below this one. Returns whether memory can be limited there."""
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
