"""A folder of checkpoints on disk: which one is complete, how one becomes complete, and whether its files are intact.

This module knows nothing about tensors. Next to a checkpoint's files is a list of their SHA-256 hashes, in the format
that `sha256sum --check SHA256SUMS` reads, so you can verify it without Python. Every rank hashes the files it wrote,
and one rank writes the list: a file from a different save has a different hash.
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
BLOCK = 1 << 20  # bytes read at a time


def sums_of(files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file, by name."""
    sums = {}
    for path in files:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
        sums[path.name] = digest.hexdigest()
    return sums


def write_sums(folder: Path, sums: Mapping[str, str]) -> None:
    """Write the list into `folder`, and return once it is on disk."""
    with (folder / SUMS).open("w") as file:
        file.writelines(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
        file.flush()
        os.fsync(file.fileno())


def find_damage(folder: Path, required: Iterable[str], only: Collection[str] | None = None) -> str:
    """Return what is wrong with the files saved in `folder`, in a few words; empty if nothing is.

    The list must include the files in `required`. This reads only the files in `only`, or all of them.
    """
    try:
        *lines, _ = (folder / SUMS).read_text().split("\n")
        listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
        for name in (*required, *listed):
            if name not in listed:
                return f"{SUMS} does not list {name}"
            if (only is None or name in only) and sums_of([folder / name])[name] != listed[name]:
                return f"{name} has changed since it was saved"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError) as error:  # bytes that are not text, or an invalid file name
        return f"{SUMS} cannot be read: {error}"
    return ""


FACTS = "training.json"
CONTENTS = ".metadata"  # torch's table of contents
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
    optimizer: str = ""  # the name of its class, if it has any state


def latest_checkpoint(folder: str | Path) -> Path | None:
    """Return the last complete checkpoint in `folder`, or None."""
    return max(_complete_checkpoints(Path(folder)), key=_updates, default=None)


def find_checkpoint(folder: str | Path, only: tuple[str, ...] | None = None) -> tuple[Checkpoint | None, list[str]]:
    """Return the last intact checkpoint in `folder`, and what is wrong with each later one.

    The checkpoint is None if the folder has none; raises if it has some, but none of them is intact. This reads every
    file to be sure, or just the files in `only`.
    """
    damaged = []
    for path in _newest_first(Path(folder)):
        damage = _damage_of(path, only)
        if not damage:
            return read_checkpoint(path), damaged
        damaged.append(f"{path} is damaged ({damage})")
    if damaged:
        raise CheckpointError(
            f"{', '.join(damaged)}, and there is no other to resume from: start over in another folder"
        )
    return None, []


def _damage_of(path: Path, only: tuple[str, ...] | None = None) -> str:
    """Return what is wrong with a checkpoint, in a few words; empty if nothing is."""
    part_files = sorted(file.name for file in path.glob("*.distcp"))
    if damage := find_damage(path, required=(FACTS, CONTENTS, *part_files), only=only):
        return damage
    try:
        updates = read_checkpoint(path).position.updates
    except CheckpointError:
        return f"{FACTS} was not saved by a run"
    return "" if updates == _updates(path) else f"it is from update {updates}"


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the description of the checkpoint at `path`."""
    try:
        facts = json.loads((path / FACTS).read_text())
        position = Position(**facts["position"])
        checkpoint = Checkpoint(
            path, position, facts["layout"], facts["parameters"], facts["notes"], facts.get("optimizer", "")
        )
        _check_types(checkpoint)
        return checkpoint
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is damaged ({FACTS}: {error}): remove it to resume from the previous one"
        ) from error


def _check_types(checkpoint: Checkpoint) -> None:
    """Refuse valid JSON that is not what a run saves."""
    for name, number in vars(checkpoint.position).items():
        if type(number) is not int or number < 0:
            raise ValueError(f"{name}={number}")
    for name in ("layout", "parameters", "notes"):
        if not isinstance(getattr(checkpoint, name), dict):
            raise ValueError(f"no {name}")
    order, loss = checkpoint.notes.get("order", {}), checkpoint.notes.get("loss", 0.0)
    if not isinstance(order, dict) or not isinstance(loss, float | int):
        raise ValueError("no loss and order in its notes")


def _updates(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _newest_first(folder: Path) -> list[Path]:
    """Return all paths that are named like checkpoints, without looking into them."""
    checkpoints = [path for path in folder.iterdir() if COMPLETE.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(checkpoints, key=_updates, reverse=True)


def _complete_checkpoints(folder: Path) -> list[Path]:
    return [path for path in _newest_first(folder) if (path / FACTS).is_file()]


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
        _mark_damaged(newer)
    for leftover in final.parent.glob("update-*.tmp"):
        shutil.rmtree(leftover)
    temporary = final.with_name(f"{final.name}.{uuid4().hex[:8]}.tmp")
    temporary.mkdir(parents=True)
    return temporary


def _mark_damaged(damaged: Path) -> None:
    """Rename a damaged checkpoint so that it is never loaded."""
    renamed = damaged.with_suffix(".damaged")
    if renamed.exists():
        shutil.rmtree(renamed)
    damaged.rename(renamed)


def complete(final: Path, temporary: Path, facts: dict[str, Any], sums: Mapping[str, str], keep: int) -> None:
    """Rename a checkpoint to its final name once it is on disk; then remove all but the last `keep`.

    `sums` are the hashes of the ranks' parts, each computed by the rank that wrote it.
    """
    with (temporary / FACTS).open("w") as file:
        json.dump(facts, file)
        file.flush()
        os.fsync(file.fileno())
    write_sums(temporary, {**sums, **sums_of([temporary / FACTS, temporary / CONTENTS])})
    _sync(temporary)
    temporary.rename(final)
    _sync(final.parent)
    for old in sorted(_complete_checkpoints(final.parent), key=_updates)[:-keep]:
        removed = old.with_suffix(".tmp")  # a crash during removal must not leave half a checkpoint under this name
        old.rename(removed)
        shutil.rmtree(removed)


def _sync(folder: Path) -> None:
    """Flush the new name to disk, too. If the platform cannot open a folder, the system flushes it later."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
