"""A folder of checkpoints on disk: which one is complete, whether its files are intact, and which job may write there.

This module knows nothing about tensors. Next to a checkpoint's files is a list of their SHA-256 hashes, in the format
that `sha256sum --check SHA256SUMS` reads. Every rank hashes the files it wrote, and one rank writes the list, so a file
from a different save has a different hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from course_lib.runtime.machine import restarts

SUMS = "SHA256SUMS"
FACTS = "training.json"
CONTENTS = ".metadata"  # torch's table of contents
LOCK = "writer.lock"
COMPLETE = re.compile(r"update-(\d{8,})")


class CheckpointError(ValueError):
    """A checkpoint that cannot be saved or loaded. The message says what to do."""


@dataclass(frozen=True)
class Position:
    """How far a training run got: the number of updates, and which batch of which epoch comes next."""

    updates: int = 0
    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's description, without its tensors."""

    path: Path
    position: Position
    layout: dict[str, Any]  # the strategy, its ranks, and which parameters each rank has
    parameters: dict[str, list]  # the shape and dtype of each, by its name in the whole model
    notes: dict[str, Any] = field(default_factory=dict)  # the caller's notes
    optimizer: str = ""  # its name and what it keeps for a parameter, if it has kept anything yet
    same_layout: bool = False  # whether each rank that loaded it has the part that it saved


def latest_checkpoint(folder: str | Path) -> Path | None:
    """Return the last complete checkpoint in `folder`, or None."""
    return next((path for path in _newest_first(Path(folder)) if (path / FACTS).is_file()), None)


def find_checkpoint(folder: str | Path, *, only_facts: bool = False) -> tuple[Checkpoint | None, list[str]]:
    """Return the last intact checkpoint in `folder`, and what is wrong with each later one.

    The checkpoint is None if the folder has none; raises if it has some, but none of them is intact. This reads every
    byte to be sure, or with `only_facts` just the description.
    """
    damaged = []
    for path in _newest_first(Path(folder)):
        damage = _damage_of(path, only_facts)
        if not damage:
            return read_checkpoint(path), damaged
        damaged.append(f"{path} is damaged ({damage})")
    if damaged:
        raise CheckpointError(
            f"{', '.join(damaged)}, and there is no other to resume from: start over in another folder"
        )
    return None, []


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the description of the checkpoint at `path`."""
    try:
        facts = json.loads((path / FACTS).read_text())
        found = Checkpoint(path, **{**facts, "position": Position(**facts["position"])})
        types = [type(found.position.updates), *map(type, (found.layout, found.parameters, found.notes))]
        if types != [int, dict, dict, dict]:
            raise TypeError("a fact has another type than the one that was saved")
        return found
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # the last: JSON of a thousand brackets
        raise CheckpointError(f"{path} is damaged ({FACTS}: {error}): remove it to resume from the previous") from error


def _newest_first(folder: Path) -> list[Path]:
    """Return all paths that are named like checkpoints, without looking into them."""
    checkpoints = [path for path in folder.iterdir() if COMPLETE.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(checkpoints, key=_updates, reverse=True)


def _updates(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _damage_of(path: Path, only_facts: bool = False) -> str:
    """Return what is wrong with a checkpoint's files, in a few words; empty if nothing is."""
    try:
        lines = (path / SUMS).read_text().splitlines()
        listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
        for name in (FACTS, CONTENTS, *sorted(file.name for file in path.glob("*.distcp"))):
            if name not in listed:
                return f"{SUMS} does not list {name}"
        for name in (FACTS,) if only_facts else listed:
            if sums_of([path / name])[name] != listed[name]:
                return f"{name} has changed since it was saved"
        updates = read_checkpoint(path).position.updates
        return "" if updates == _updates(path) else f"it is from update {updates}"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError) as error:  # bytes that are not text, invalid JSON or file names
        return f"it cannot be read: {error}"


def sums_of(files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file, by name."""
    sums = {}
    for path in files:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
        sums[path.name] = digest.hexdigest()
    return sums


@contextlib.contextmanager
def _in_a_sentence() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"the checkpoint cannot be written ({error}): check that the disk has room") from error


@_in_a_sentence()
def make_room(final: Path) -> Path:
    """Create a folder with a unique name to write a checkpoint into, and return its path.

    Removes what crashes left behind, renames damaged checkpoints, and refuses to overwrite an intact one.
    """
    for newer in _newest_first(final.parent):
        if _updates(newer) < _updates(final):
            break
        if not _damage_of(newer):
            problem = "exists" if newer == final else f"is ahead of update {_updates(final)}"
            raise CheckpointError(f"{newer} {problem}: load it and continue from there, or save into another folder")
        shutil.rmtree(newer.with_suffix(".damaged"), ignore_errors=True)
        newer.rename(newer.with_suffix(".damaged"))
    for leftover in final.parent.glob("update-*.tmp"):
        shutil.rmtree(leftover)
    temporary = final.with_name(f"{final.name}.{uuid4().hex[:8]}.tmp")
    temporary.mkdir(parents=True)
    return temporary


@_in_a_sentence()
def complete(final: Path, temporary: Path, facts: Mapping[str, Any], sums: Mapping[str, str], keep: int) -> None:
    """Rename a checkpoint to its final name once it is on disk; then remove all but the last `keep`.

    `sums` are the hashes of the ranks' parts, each computed by the rank that wrote it.
    """
    _write(temporary / FACTS, json.dumps(facts))
    sums = {**sums, **sums_of([temporary / FACTS, temporary / CONTENTS])}
    _write(temporary / SUMS, "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))
    _sync(temporary)
    temporary.rename(final)
    _sync(final.parent)
    for old in [path for path in _newest_first(final.parent) if (path / FACTS).is_file()][keep:]:
        # A crash during the removal must not leave half a checkpoint under this name.
        shutil.rmtree(old.rename(old.with_suffix(".tmp")))


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Flush the new name to disk, too. If the platform cannot open a folder, the system flushes it later."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_DIRECTORY)
        os.fsync(descriptor)
        os.close(descriptor)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Inside this context, no other job may write into `folder`; raises if another job may be doing so now.

    The kernel holds the lock (`flock`), and releases it when the process ends, however it ends. Not every file system
    shares locks between machines. So a name in the file counts, too, if a process on another machine left it, unless
    that was an earlier attempt of this job, which torchrun or Slurm has restarted here.
    """
    path, made_folder, host = folder / LOCK, not folder.exists(), socket.gethostname()
    run = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    job = f"job {run}, " if run != "none" else ""
    with contextlib.ExitStack() as stack:
        with _in_a_sentence():
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("a+"))
            is_locked = _lock(file)
            file.seek(0)
            holder = file.read()
            was_mine = (is_locked and holder.endswith(f" on {host}")) or (job and restarts() and holder.startswith(job))
            # If a job that was ending removed the file while we opened it, the next writer would lock another file.
            was_removed = not path.exists() or path.stat().st_ino != os.fstat(file.fileno()).st_ino
            if is_locked is False or was_removed or (holder and not was_mine):
                raise CheckpointError(
                    f"{folder} is in use by {holder or 'another job'}: wait until it ends, or give another folder; "
                    f"if you know that it is dead, remove {path}"
                )
            file.truncate(0)
            file.write(f"{job}process {os.getpid()} on {host}")
            file.flush()
        try:
            yield
        finally:
            file.truncate(0)
            with contextlib.suppress(OSError):  # an open file on Windows, or a folder with checkpoints
                path.unlink(missing_ok=True)
                if made_folder:
                    folder.rmdir()


def _lock(file: IO[str]) -> bool | None:
    """Return whether this process has locked the file; None if this system, or this file system, has no locks."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
