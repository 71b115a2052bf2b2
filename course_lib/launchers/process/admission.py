"""A launch on a machine that many share: it waits its turn while the others' ranks fill the memory.

Off, unless `COURSE_LIB_LAUNCHES` names a folder that all of them can write to: `docs/deploy/jupyterhub` sets it.
There, every launch has a socket, named after its number of ranks. Whether somebody listens at it says whether the
launch still lives, however it ended; the system keeps whose it is and when it came. So nobody has to be believed,
and with the folder's sticky bit, nobody can remove another's. One user's launches count, for others, for half the
room at most: whoever opens a thousand sockets does not keep the class from working.

When the machine has run out of something all the same, `explain_failure` says what to do about it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course_lib import machine


class CannotStart(RuntimeError):
    """A rank or its supervisor cannot be started: the sentence says why, and what to do."""


def explain_failure(error: BaseException) -> str:
    """What went wrong, and what to do about it."""
    if isinstance(error, CannotStart):
        return str(error)
    if isinstance(error, MemoryError):
        return "this machine has too little memory: launch fewer ranks"
    number = getattr(error, "errno", None)
    if number in (errno.EMFILE, errno.ENFILE):
        return (
            f"too many open files{_limit('RLIMIT_NOFILE')}. A rank needs five in the process that looks after it: "
            "raise the limit (`ulimit -n 1024` before Jupyter is started), or launch fewer ranks"
        )
    if number == errno.EAGAIN:
        return (
            f"no more processes are allowed{_limit('RLIMIT_NPROC')}. Every rank has a process and some threads: raise "
            "the limit (`ulimit -u`, or the container's), end what else is running, or launch fewer ranks"
        )
    if number == errno.ENOMEM:
        return "this machine has too little memory: launch fewer ranks"
    if number == errno.ENOSPC:
        return "the disk for temporary files is full: make room there, or set TMPDIR to another folder"
    if "AF_UNIX path too long" in str(error):
        return "the name of the folder for temporary files is too long: set TMPDIR to one with a shorter name"
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):
        return "there is no folder for temporary files: set TMPDIR to one that exists and can be written to"
    return f"{type(error).__name__}: {error}"


def _limit(name: str) -> str:
    """`; 64 are allowed`, where the system tells."""
    if sys.platform == "win32":
        return ""
    import resource

    soft, _ = resource.getrlimit(getattr(resource, name))
    return "" if soft == resource.RLIM_INFINITY else f" ({soft} are allowed)"


FOLDER = "COURSE_LIB_LAUNCHES"
MOST = (
    "COURSE_LIB_LAUNCHES_RANKS"  # that run at a time, of all users together; without it, what the memory has room for
)
NAME = re.compile(r"([1-9][0-9]{0,2})-[0-9a-f]{32}")
MOST_LOOKED_AT = 10_000  # sockets in the folder
LONGEST_NAME = 60  # bytes: the name of a socket has 108, and ours is some 40 longer
LOOK_EVERY = 0.25  # seconds
RANK_MEMORY = 200 << 20  # bytes that a small rank uses for itself: `course class --capacity` measures them
SHARE = 0.5  # of the memory is for ranks; the rest is for Jupyter's servers and kernels


@dataclass(frozen=True, order=True)
class Ticket:
    """A launch that is in the folder: when it came, whose it is, and how many ranks it has."""

    came: int
    name: str
    owner: int
    ranks: int


@contextlib.contextmanager
def admitted(ranks: int) -> Iterator[None]:
    """Wait until there is room for so many ranks, say so if that takes time, and hold it for the block."""
    folder = os.environ.get(FOLDER, "")
    if not folder or not _usable(Path(folder)):
        yield
        return
    with _ticket(Path(folder), ranks) as name:
        _wait(Path(folder), name)
        yield


def most_ranks() -> int:
    """How many ranks may run at a time."""
    given = os.environ.get(MOST, "")
    if given.isascii() and given.isdigit() and int(given) > 0:
        return int(given)
    return max(1, int(SHARE * (machine.memory_bytes() or 0)) // RANK_MEMORY)


def reason_to_wait(tickets: list[Ticket], mine: Ticket, most: int, available: int | None) -> str:
    """Why this launch cannot start yet; "" if it can. Those that came later wait for it, and not it for them."""
    ahead = [ticket for ticket in tickets if ticket < mine]
    by_owner = Counter[int]()
    for ticket in ahead:
        by_owner[ticket.owner] += ticket.ranks
    running = sum(count if owner == mine.owner else min(count, max(1, most // 2)) for owner, count in by_owner.items())
    if not running:  # nobody to wait for
        return ""
    if running + mine.ranks > most:
        return (
            f"{running} ranks of other launches are ahead of these {mine.ranks}, and this machine has room for {most}"
        )
    needed = mine.ranks * RANK_MEMORY
    if available is not None and available < needed:
        return f"{available >> 20} MB are free here, and {mine.ranks} ranks need {needed >> 20}"
    return ""


def available_memory() -> int | None:
    """Bytes that a new process could use without swapping, here or in this container; None where nobody says."""
    here = re.search(r"^MemAvailable:\s+(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE)
    found = [int(here[1]) << 10] if here else []
    limit, used = _read("/sys/fs/cgroup/memory.max").strip(), _read("/sys/fs/cgroup/memory.current").strip()
    if limit.isdigit() and used.isdigit():
        found.append(max(0, int(limit) - int(used)))
    return min(found, default=None)


def _usable(folder: Path) -> bool:
    """Whether launches can be counted in this folder: without that, they are not held up."""
    if sys.platform == "win32" or len(os.fsencode(folder)) > LONGEST_NAME:
        return False
    return folder.is_dir() and os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def _wait(folder: Path, name: str) -> None:
    told = False
    while True:
        tickets = _tickets(folder)
        mine = next((ticket for ticket in tickets if ticket.name == name), None)
        reason = mine and reason_to_wait(tickets, mine, most_ranks(), available_memory())
        if not reason:
            return
        if not told:
            print(f"[launch] waiting for memory: {reason}. It starts by itself; interrupt it to give up", flush=True)
            told = True
        time.sleep(LOOK_EVERY)


@contextlib.contextmanager
def _ticket(folder: Path, ranks: int) -> Iterator[str]:
    """A socket in the folder, as long as the block lasts or the process lives."""
    name = f"{ranks}-{uuid.uuid4().hex}"
    aside = folder / f".{name}"  # nobody sees it before somebody listens at it
    with socket.socket(socket.AF_UNIX) as listening:
        try:
            with contextlib.suppress(OSError):  # a full disk: it runs uncounted
                listening.bind(str(aside))
                aside.chmod(0o666)  # to ask whether somebody listens is to write
                listening.listen(1)
                aside.rename(folder / name)
            yield name
        finally:
            for path in (aside, folder / name):
                path.unlink(missing_ok=True)


def _tickets(folder: Path) -> list[Ticket]:
    """The launches that live. What others of this user's have left behind is removed."""
    found: list[Ticket] = []
    with os.scandir(folder) as entries:
        for _, entry in zip(range(MOST_LOOKED_AT), entries, strict=False):
            with contextlib.suppress(OSError):
                info, ranks = entry.stat(follow_symlinks=False), NAME.fullmatch(entry.name)
                if ranks is None or not stat.S_ISSOCK(info.st_mode):
                    continue
                if _lives(Path(entry.path)):
                    found.append(Ticket(info.st_ctime_ns, entry.name, info.st_uid, int(ranks[1])))
                elif info.st_uid == os.getuid():
                    os.unlink(entry.path)
    return sorted(found)


def _lives(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(str(path))
        except BlockingIOError:  # so many have asked that no more fit
            return True
        except OSError:
            return False
    return True


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
