"""Which data a run is trained on, told by its size and a sample: a run is resumed with the same, or not at all."""

from __future__ import annotations

import hashlib
from typing import Any

from course_lib.training.checkpoint import on_rank_0
from course_lib.training.checkpoint.folder import Checkpoint, CheckpointError
from course_lib.training.own import BadFunction
from course_lib.training.tasks import Task

SAMPLED = 8  # batches, from the first to the last of an epoch


def fingerprint(task: Task) -> dict[str, Any]:
    """How many batches an epoch has, and a hash of some of them."""
    task.sampler.set_epoch(0)
    batches = task.sampler.global_batches()
    places = sorted({place * (len(batches) - 1) // max(1, SAMPLED - 1) for place in range(SAMPLED)})
    found = hashlib.sha256()
    for place in places:
        batch = task.dataset.batch(batches[place])
        for tensor in (batch.inputs, batch.targets, batch.lengths, batch.mask):
            found.update(repr(tuple(tensor.shape)).encode() + tensor.contiguous().numpy().tobytes())
    return {"batches": len(batches), "sample": found.hexdigest()[:16]}


def fingerprint_of_all_ranks(task: Task, name: str) -> dict[str, Any]:
    """The data's fingerprint; refuses data that is not the same on every rank."""
    ours = fingerprint(task)
    if on_rank_0(lambda: ours) != ours:
        raise BadFunction(
            f"--data {name} gives this rank other examples than rank 0: make them the same on every rank, from a fixed "
            "seed or a file"
        )
    return ours


def check_same_data(saved: Checkpoint, ours: dict[str, Any]) -> None:
    """Refuse to go on with other data than a checkpoint has seen."""
    theirs = saved.notes.get("data", ours)
    if theirs == ours:
        return
    size = f" ({theirs['batches']:,} batches in an epoch, now {ours['batches']:,})"
    raise CheckpointError(
        f"{saved.path} was trained on other data than this{size if theirs['batches'] != ours['batches'] else ''}: go "
        "on with the same, or begin anew in another folder"
    )
