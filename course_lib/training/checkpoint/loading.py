"""Load a checkpoint into any strategy, on any number of ranks."""

from __future__ import annotations

import warnings
from pathlib import Path

from course_lib.strategies import Strategy
from course_lib.strategies.base import rank_and_ranks
from course_lib.strategies.shards import NamedTensors
from course_lib.training.checkpoint.folder import Checkpoint, CheckpointError, find_checkpoint
from course_lib.training.checkpoint.lock import on_rank_0
from course_lib.training.checkpoint.state import (
    Pieces,
    check_same_model,
    check_same_optimizer,
    check_same_slots,
    copy_name,
    empty,
    empty_slot,
    find_buffers,
    in_words,
    layout_of,
    own_keys,
    parameters_of,
    parts_of,
    restore_buffers,
    restore_optimizer,
    restore_rank,
)


def load_checkpoint(strategy: Strategy, folder: str | Path) -> Checkpoint:
    """Load the latest checkpoint in `folder` into `strategy`, and return the checkpoint's description.

    With the same layout, training then continues as if it had never stopped, bit for bit (on a GPU, as far as its
    kernels are deterministic). With torch's DDP on three or more ranks, run one step *before* the load: DDP reorders
    its messages after its first step, and with them the order in which three numbers are added.

    If a checkpoint is damaged, a warning names it, and the one before it is loaded.

    With a different layout, every rank keeps its current random numbers, and a carried state starts at zero. If each
    rank had its own version of a buffer, like BatchNorm's, the first rank's is loaded. The learning rate is the new
    optimizer's.
    """
    from course_lib.training.checkpoint import planners

    checkpoint, damaged = on_rank_0(lambda: find_checkpoint(folder))
    if checkpoint is None:
        raise CheckpointError(f"there is no checkpoint in {folder}: give the folder that it was saved into")
    found = checkpoint.path
    if damaged and rank_and_ranks()[0] == 0:
        warnings.warn(f"{', '.join(damaged)}: {found.name}, the one before, is loaded instead", stacklevel=2)
    parts = parts_of(strategy)
    check_same_model(checkpoint, parameters_of(parts))
    check_same_optimizer(checkpoint, strategy)
    same_layout = checkpoint.layout == layout_of(strategy, parts)
    try:
        saved = planners.FileSystemReader(found).read_metadata().state_dict_metadata
    except Exception as error:  # a truncated pickle may raise anything
        raise CheckpointError(f"{found} is damaged ({error}): remove it to resume from the one before") from error
    check_same_slots(checkpoint, saved, strategy)
    shards = strategy.shards()
    wanted = {copy_name(shard, same_layout) + f"model.{name}": Pieces.of(shard) for name, shard in shards.items()}
    slots: dict[str, NamedTensors] = {name: {} for name in shards}
    for name, shard in shards.items():
        prefix = copy_name(shard, same_layout) + f"optimizer.{name}."
        for key, entry in saved.items():
            slot = key.removeprefix(prefix)
            if key.startswith(prefix) and "." not in slot:
                slots[name][slot] = empty_slot(shard, name, slot, entry)
                wanted[key] = Pieces.of(shard, slots[name][slot])
    buffers = find_buffers(checkpoint, saved, strategy, same_layout)
    own = {key: empty(saved[key]) for key in [*(own_keys(saved) if same_layout else ()), *buffers.values()]}
    wanted |= {key: Pieces.whole(tensor) for key, tensor in own.items()}
    try:
        planners.load(wanted, storage_reader=planners.FileSystemReader(found), planner=planners.LoadPieces())
    except planners.CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise CheckpointError(
            f"{found} is damaged (rank {rank}: {str(cause).splitlines()[0]}): remove it to resume from the one before"
        ) from error
    restore_optimizer(strategy, {shards[name].tensor: of_name for name, of_name in slots.items() if of_name})
    restore_rank(strategy, own)
    restore_buffers(strategy, {name: own[key] for name, key in buffers.items()})
    strategy.updates = checkpoint.position.updates
    if strategy.carry_state and not same_layout and rank_and_ranks()[0] == 0:
        ours = layout_of(strategy, parts)
        warnings.warn(
            f"{checkpoint.path.name} was saved by {in_words(checkpoint.layout)}, and is loaded by "
            f"{in_words(ours)}: the carried state begins at zero",
            stacklevel=2,
        )
    return checkpoint
