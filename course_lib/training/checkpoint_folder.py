"""A folder of checkpoints on the disk: which one is complete, and how one becomes so. It knows nothing of tensors."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FACTS = "training.json"
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


def _complete_ones(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if COMPLETE.fullmatch(path.name) and (path / FACTS).is_file()]


def make_room(final: Path, aside: Path) -> None:
    """Remove what crashes have left behind, and refuse to write over a checkpoint."""
    if final.exists():
        raise CheckpointError(f"{final} exists: load it and go on from there, or save into another folder")
    newest = latest_checkpoint(final.parent)
    if newest is not None and _updates(newest) > _updates(final):
        raise CheckpointError(
            f"{newest} is further than update {_updates(final)}: load it and go on from there, or save into another "
            "folder"
        )
    for leftover in final.parent.glob("update-*.tmp"):
        shutil.rmtree(leftover)
    aside.mkdir(parents=True)


def complete(final: Path, aside: Path, facts: dict[str, Any], keep: int) -> None:
    """Give a checkpoint its name, once it is on the disk, and then remove the oldest."""
    with (aside / FACTS).open("w") as file:
        json.dump(facts, file)
        file.flush()
        os.fsync(file.fileno())
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
