"""Which data a run is trained on, told by its size and a sample: a run is resumed with the same, or not at all."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from course_lib.data import Batch
from course_lib.launchers.process.lifetime import seed_generators
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
        found.update(_bytes(task.dataset.batch(batches[place])))
    return {"batches": len(batches), "sample": found.hexdigest()[:16]}


def check_draws_nothing(task: Task, name: str) -> None:
    """Refuse data whose batches change with the random numbers of the rank that reads them."""
    task.sampler.set_epoch(0)
    first, read = task.sampler.global_batches()[0], []
    for seed in (1, 2):
        seed_generators(seed)
        read.append(_bytes(task.dataset.batch(first)))
    if read[0] != read[1]:
        raise BadFunction(
            f"--data {name} draws random numbers when a batch is read, so each rank would read a different batch: draw "
            "them when the data is made, or from a generator seeded with the examples' numbers"
        )


def _bytes(batch: Batch) -> bytes:
    tensors = (batch.inputs, batch.targets, batch.lengths, batch.mask)
    flat = (tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors)
    return b"".join([*(repr(tuple(tensor.shape)).encode() for tensor in tensors), *flat])


def fingerprint_of_all_ranks(task: Task, name: str) -> dict[str, Any]:
    """The data's fingerprint; refuses data that is not the same on every rank."""
    check_draws_nothing(task, name)
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
