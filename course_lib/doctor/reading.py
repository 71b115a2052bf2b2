"""How fast a rank reads its part of the data: from the disk, and again, from what the kernel keeps in memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 128 << 20  # of one rank
MOST_FILES = 10_000
BLOCK = 4 << 20
WORTH_TIMING = 16 << 20  # bytes: of fewer, opening the file is what takes time


@dataclass(frozen=True)
class Reading:
    """What a rank has read, in bytes and seconds: the first time, and again; or why it could not."""

    size: int = 0
    first: float = 0.0
    again: float = 0.0
    forgotten: bool = False  # the kernel was asked to drop what it kept of the files
    trouble: str = ""


Stretch = tuple[Path, int, int]  # a file, from which byte, how many


def read_share(path: str, rank: int, ranks: int) -> Reading:
    """Read this rank's part of a file, or of a folder's files, twice: at most `MOST_BYTES`."""
    try:
        stretches = list(_share(_files(Path(path)), rank, ranks))
        size = sum(length for _, _, length in stretches)
        if not size:
            return Reading(trouble=f"{path} holds nothing for rank {rank} to read")
        forgotten = list(map(_forget, stretches))
        return Reading(size, _seconds_to_read(stretches), _seconds_to_read(stretches), all(forgotten))
    except OSError as error:
        return Reading(trouble=f"{error.filename or path}: {error.strerror}")


def _files(path: Path) -> list[tuple[Path, int]]:
    """The file, or the folder's files in order, with their sizes."""
    if path.is_file():
        return [(path, path.stat().st_size)]
    if not path.is_dir():
        raise FileNotFoundError(2, "there is no such file or folder", str(path))
    found = []
    for folder, folders, names in os.walk(path):
        folders.sort()
        found += [Path(folder, name) for name in sorted(names)]
        if len(found) >= MOST_FILES:
            break
    return [(each, each.stat().st_size) for each in found[:MOST_FILES] if each.is_file()]


def _share(files: list[tuple[Path, int]], rank: int, ranks: int) -> Iterator[Stretch]:
    """The rank-th of `ranks` equal parts of all bytes, up to the limit."""
    total = sum(size for _, size in files)
    begin = total * rank // ranks
    end = min(total * (rank + 1) // ranks, begin + MOST_BYTES)
    at = 0
    for file, size in files:
        low, high = max(begin, at), min(end, at + size)
        if low < high:
            yield file, low - at, high - low
        at += size


def _forget(stretch: Stretch) -> bool:
    """Ask the kernel to drop what it keeps of this stretch. It may refuse, and some systems cannot be asked."""
    if not hasattr(os, "posix_fadvise"):
        return False
    file, offset, length = stretch
    with open(file, "rb", buffering=0) as opened:
        try:
            os.posix_fadvise(opened.fileno(), offset, length, os.POSIX_FADV_DONTNEED)
        except OSError:
            return False
    return True


def _seconds_to_read(stretches: list[Stretch]) -> float:
    began = time.monotonic()
    buffer = memoryview(bytearray(BLOCK))
    for file, offset, length in stretches:
        with open(file, "rb", buffering=0) as opened:
            opened.seek(offset)
            while length > 0 and (count := opened.readinto(buffer[: min(BLOCK, length)])):
                length -= count
    return max(time.monotonic() - began, 1e-9)
