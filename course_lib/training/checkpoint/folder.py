"""A folder of checkpoints on the disk: which one is complete, how one becomes so, and whether its files are intact.

It knows nothing of tensors. Beside a checkpoint's files lies the SHA-256 of each, in the form that
`sha256sum --check SHA256SUMS` reads, so you can verify it without Python. Every rank hashes what it has written, and
one of them writes the list: a file from a different save has a different hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

SUMS = "SHA256SUMS"
PIECE = 1 << 20  # bytes read at a time


def sums_of(files: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of each of these files, by its name."""
    found = {}
    for path in files:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                digest.update(piece)
        found[path.name] = digest.hexdigest()
    return found


def write_sums(folder: Path, sums: Mapping[str, str]) -> None:
    """Write the list into `folder`, and return when it is on the disk."""
    with (folder / SUMS).open("w") as file:
        file.writelines(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
        file.flush()
        os.fsync(file.fileno())


def find_damage(folder: Path, needed: Iterable[str], only: Collection[str] | None = None) -> str:
    """What is wrong with the files that were saved in `folder`, in a few words; empty if nothing is.

    `needed` are files that every list must have. `only` these are read, or all.
    """
    try:
        *lines, _ = (folder / SUMS).read_text().split("\n")
        listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
        for name in (*needed, *listed):
            if name not in listed:
                return f"{SUMS} does not list {name}"
            if (only is None or name in only) and sums_of([folder / name])[name] != listed[name]:
                return f"{name} is not as it was saved"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError) as error:  # bytes that are no text, a name that cannot be one
        return f"{SUMS} cannot be read: {error}"
    return ""


FACTS = "training.json"
CONTENTS = ".metadata"  # torch's table of contents
COMPLETE = re.compile(r"update-(\d{8,})")


class CheckpointError(ValueError):
    """A checkpoint that cannot be saved or loaded; the sentence says what to do."""


@dataclass(frozen=True)
class Position:
    """How far a training run is: the updates done, and the batch of the epoch that comes next."""

    updates: int = 0
    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint says of itself, without its tensors."""

    path: Path
    position: Position
    layout: dict[str, Any]  # the strategy, its ranks, and which parameters each has
    parameters: dict[str, list]  # shape and dtype of each, by its name in the whole model
    notes: dict[str, Any] = field(default_factory=dict)  # the caller's own
    optimizer: str = ""  # the name of its class, if it had anything to keep


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The last complete checkpoint in `folder`, or None."""
    return max(_complete_ones(Path(folder)), key=_updates, default=None)


def find_checkpoint(folder: str | Path, only: tuple[str, ...] | None = None) -> tuple[Checkpoint | None, list[str]]:
    """The last checkpoint in `folder` that is as it was saved; and for each later one, what is wrong with it.

    None if there is none at all; raises if there are some, and not one is whole. To be sure is to read all of it: with
    `only` some files' names, only those are read.
    """
    damaged = []
    for path in _newest_first(Path(folder)):
        damage = _damage_of(path, only)
        if not damage:
            return read_checkpoint(path), damaged
        damaged.append(f"{path} is damaged ({damage})")
    if damaged:
        raise CheckpointError(
            f"{', '.join(damaged)}, and there is no other to go on from: start anew in another folder"
        )
    return None, []


def _damage_of(path: Path, only: tuple[str, ...] | None = None) -> str:
    """What is wrong with a checkpoint, in a few words; empty if nothing is."""
    parts = sorted(file.name for file in path.glob("*.distcp"))
    if damage := find_damage(path, needed=(FACTS, CONTENTS, *parts), only=only):
        return damage
    try:
        updates = read_checkpoint(path).position.updates
    except CheckpointError:
        return f"{FACTS} is not what a run has saved"
    return "" if updates == _updates(path) else f"it is of update {updates}"


def read_checkpoint(path: Path) -> Checkpoint:
    """What the checkpoint at `path` says of itself."""
    try:
        facts = json.loads((path / FACTS).read_text())
        position = Position(**facts["position"])
        found = Checkpoint(
            path, position, facts["layout"], facts["parameters"], facts["notes"], facts.get("optimizer", "")
        )
        _check_kinds(found)
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is damaged ({FACTS}: {error}): remove it, to go on from the one before"
        ) from error


def _check_kinds(found: Checkpoint) -> None:
    """Refuse what is JSON, and not what was saved."""
    for name, number in vars(found.position).items():
        if type(number) is not int or number < 0:
            raise ValueError(f"{name}={number}")
    for name in ("layout", "parameters", "notes"):
        if not isinstance(getattr(found, name), dict):
            raise ValueError(f"no {name}")
    if not isinstance(found.notes.get("order", {}), dict) or not isinstance(found.notes.get("loss", 0.0), float | int):
        raise ValueError("no loss and order in its notes")


def _updates(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _newest_first(folder: Path) -> list[Path]:
    """All that has a checkpoint's name, whatever is in it."""
    found = [path for path in folder.iterdir() if COMPLETE.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, key=_updates, reverse=True)


def _complete_ones(folder: Path) -> list[Path]:
    return [path for path in _newest_first(folder) if (path / FACTS).is_file()]


def make_room(final: Path) -> Path:
    """A new folder to write a checkpoint into, with a name that no other save has.

    Removes what crashes have left behind, puts damaged checkpoints aside, and refuses to write over a whole one.
    """
    for newer in _newest_first(final.parent):
        if _updates(newer) < _updates(final):
            break
        if not _damage_of(newer):
            where = "exists" if newer == final else f"is further than update {_updates(final)}"
            raise CheckpointError(f"{newer} {where}: load it and go on from there, or save into another folder")
        _put_aside(newer)
    for leftover in final.parent.glob("update-*.tmp"):
        shutil.rmtree(leftover)
    aside = final.with_name(f"{final.name}.{uuid4().hex[:8]}.tmp")
    aside.mkdir(parents=True)
    return aside


def _put_aside(damaged: Path) -> None:
    """Keep what is damaged under a name by which nobody loads it."""
    kept = damaged.with_suffix(".damaged")
    if kept.exists():
        shutil.rmtree(kept)
    damaged.rename(kept)


def complete(final: Path, aside: Path, facts: dict[str, Any], sums: Mapping[str, str], keep: int) -> None:
    """Give a checkpoint its name, once it is on the disk, and then remove the oldest.

    `sums` are those of the ranks' parts, each made by the rank that wrote it.
    """
    with (aside / FACTS).open("w") as file:
        json.dump(facts, file)
        file.flush()
        os.fsync(file.fileno())
    write_sums(aside, {**sums, **sums_of([aside / FACTS, aside / CONTENTS])})
    _sync(aside)
    aside.rename(final)
    _sync(final.parent)
    for old in sorted(_complete_ones(final.parent), key=_updates)[:-keep]:
        doomed = old.with_suffix(".tmp")  # a crash while it is removed must not leave half of it under its name
        old.rename(doomed)
        shutil.rmtree(doomed)


def _sync(folder: Path) -> None:
    """Have the new name on the disk, too; where a folder cannot be opened for that, the system does it in its time."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
