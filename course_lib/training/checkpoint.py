"""Checkpoints, keyed by the whole model's names: saved by one strategy on some ranks, loaded by any on any number.

    DIR/update-00000050                 complete: it got its name when every rank had written its part
    DIR/update-00000100.1b9d6bcd.tmp    being written, or left behind by a crash: never loaded, removed by the next save
    DIR/update-00000150.damaged         not as it was saved, and put aside when the run came there again

A strategy's `shards()` says which part of each parameter a rank has, and nothing else is asked of it. A rank writes
what it has; of what several ranks have, one writes it. Beside the tensors lies `training.json`: what model this is,
how far the training is, and how it was split.

`torch.distributed.checkpoint` keeps its table of contents as a pickle, which can run code when it is read: load
checkpoints that you, or someone you trust, have saved. The tensors themselves are read with `weights_only=True`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from course_lib.machine import device
from course_lib.strategies import Strategy
from course_lib.strategies.base import StatesByMicroBatch, rank_and_ranks
from course_lib.strategies.registry import check_is_strategy
from course_lib.strategies.shards import NamedTensors, Outlines, Shard, check_outlines, gather_outlines
from course_lib.training.checkpoint_folder import (
    Checkpoint,
    CheckpointError,
    Position,
    complete,
    find_checkpoint,
    make_room,
)
from course_lib.training.checkpoint_lock import WriterLock, acquire_lock
from course_lib.training.checkpoint_pieces import LoadPieces, Pieces, SavePieces
from course_lib.training.checkpoint_sums import sums_of

CHECKPOINTS_KEPT = 2


def save_checkpoint(
    strategy: Strategy,
    folder: str | Path,
    position: Position,
    *,
    notes: dict[str, Any] | None = None,
    keep: int = CHECKPOINTS_KEPT,
    lock: WriterLock | None = None,
) -> Path:
    """Write a checkpoint into `folder`, remove all but the last `keep`, and return where it is; for all ranks to call.

    Until the last byte is written it has another name, so a crash at any moment leaves the previous one to resume from.
    With a `lock`, which rank 0 has, nothing is written into a folder that another job has taken over.
    """
    save = begin_save(strategy, folder, position, notes=notes, keep=keep, lock=lock)
    with save.explained():
        dcp_save(state_dict_of(strategy), storage_writer=FileSystemWriter(save.aside), planner=SavePieces())
    return save.finish()


@dataclass(frozen=True)
class Save:
    """A checkpoint that is being written, and not yet by its name. `group` are the ranks' ways to each other."""

    final: Path
    aside: Path
    facts: dict[str, Any]
    keep: int
    lock: WriterLock | None
    group: dist.ProcessGroup | None = None

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """In the block, torch's error becomes a sentence, and what was written goes: it is room on the disk."""
        try:
            yield
        except CheckpointException as error:  # every rank gets it, whichever failed
            on_rank_0(lambda: shutil.rmtree(self.aside, ignore_errors=True), self.group)
            rank, (cause, _) = next(iter(error.failures.items()))
            raise CheckpointError(
                f"rank {rank} cannot write its part of {self.final} ({_reason(cause)}): see that the disk has room"
            ) from error

    def finish(self) -> Path:
        """Give the checkpoint its name, when all ranks have written their parts; for all of them to call."""
        sums = _sums_of_all_parts(self.aside, self.group)
        on_rank_0(lambda: self._complete(sums), self.group)
        return self.final

    def _complete(self, sums: dict[str, str]) -> None:
        if self.lock is not None:
            self.lock.check()
        complete(self.final, self.aside, self.facts, sums, self.keep)


def begin_save(
    strategy: Strategy,
    folder: str | Path,
    position: Position,
    *,
    notes: dict[str, Any] | None = None,
    keep: int = CHECKPOINTS_KEPT,
    lock: WriterLock | None = None,
    group: dist.ProcessGroup | None = None,
) -> Save:
    """Make room for a checkpoint; the ranks agree on what it is, and write their parts afterwards."""
    if keep < 1:
        raise ValueError(f"keep={keep}: at least the checkpoint that is saved is kept")
    final = Path(folder) / f"update-{position.updates:08d}"
    parts = _parts_of(strategy, sampled=True)
    facts = {
        "position": asdict(position),
        "layout": _layout(strategy, parts),
        "parameters": _parameters(parts),
        "notes": notes or {},
        "optimizer": type(strategy.optimizer).__name__ if any(strategy.optimizer.state.values()) else "",
    }
    aside: Path = on_rank_0(lambda: _make_room(final, lock))
    return Save(final, aside, facts, keep, lock, group)


def _make_room(final: Path, lock: WriterLock | None) -> Path:
    if lock is not None:
        lock.check()
    return make_room(final)


def _reason(cause: BaseException) -> str:
    """Why something could not be written, in a few words."""
    while not isinstance(cause, OSError) and (cause.__cause__ or cause.__context__):
        cause = cause.__cause__ or cause.__context__ or cause
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return (str(cause).splitlines() or [type(cause).__name__])[0]


def load_checkpoint(strategy: Strategy, folder: str | Path) -> Checkpoint:
    """Give `strategy` what the latest checkpoint in `folder` holds, and return what it says of itself.

    On the layout that saved it, training then goes on to the last bit as if it had never stopped (on a GPU, as far as
    its kernels repeat themselves). Where torch's DDP joins three ranks or more, that takes one step *before* the load:
    DDP orders its messages after its first step, and with them the order in which three numbers are added.

    One that is not as it was saved is named in a warning, and the one before it is loaded.

    On another layout every rank keeps the random numbers that it has, and a carried state begins at zero. The learning
    rate is that of the new optimizer.
    """
    checkpoint, damaged = on_rank_0(lambda: find_checkpoint(folder))
    if checkpoint is None:
        raise CheckpointError(f"there is no checkpoint in {folder}: give the folder that it was saved into")
    found = checkpoint.path
    if damaged and rank_and_ranks()[0] == 0:
        warnings.warn(f"{', '.join(damaged)}: {found.name}, the one before, is loaded instead", stacklevel=2)
    parts = _parts_of(strategy)
    _check_same_model(checkpoint, _parameters(parts))
    _check_same_optimizer(checkpoint, strategy)
    same_layout = checkpoint.layout == _layout(strategy, parts)
    try:
        saved = FileSystemReader(found).read_metadata().state_dict_metadata
    except Exception as error:  # a pickle that is cut short may raise anything
        raise CheckpointError(f"{found} is damaged ({error}): remove it, to go on from the one before") from error
    shards = strategy.shards()
    wanted = {_copy(shard, same_layout) + f"model.{name}": Pieces.of(shard) for name, shard in shards.items()}
    slots: dict[str, NamedTensors] = {name: {} for name in shards}
    for name, shard in shards.items():
        prefix = _copy(shard, same_layout) + f"optimizer.{name}."
        for key, entry in saved.items():
            slot = key.removeprefix(prefix)
            if key.startswith(prefix) and "." not in slot:
                slots[name][slot] = _empty_slot(shard, name, slot, entry)
                wanted[key] = Pieces.of(shard, slots[name][slot])
    own = _empty_own(saved) if same_layout else {}
    wanted |= {key: Pieces.whole(tensor) for key, tensor in own.items()}
    try:
        dcp_load(wanted, storage_reader=FileSystemReader(found), planner=LoadPieces())
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise CheckpointError(
            f"{found} is damaged (rank {rank}: {str(cause).splitlines()[0]}): remove it, to go on from the one before"
        ) from error
    _restore_optimizer(strategy, {shards[name].tensor: of_name for name, of_name in slots.items() if of_name})
    _restore_rank(strategy, own)
    strategy.updates = checkpoint.position.updates
    if strategy.carry_state and not same_layout and rank_and_ranks()[0] == 0:
        ours = _layout(strategy, parts)
        warnings.warn(
            f"{checkpoint.path.name} was saved by {_in_words(checkpoint.layout)}, and is loaded by "
            f"{_in_words(ours)}: the carried state begins at zero",
            stacklevel=2,
        )
    return checkpoint


@contextlib.contextmanager
def writing_into(folder: str | Path) -> Iterator[WriterLock]:
    """In the block, no other job may write into `folder`; for all ranks to call."""
    is_rank_0 = rank_and_ranks()[0] == 0
    lock, from_whom = on_rank_0(lambda: acquire_lock(folder))
    if from_whom and is_rank_0:
        print(f"{folder} is taken over from {from_whom}, which no longer writes there", flush=True)
    try:
        yield lock
    finally:
        if is_rank_0:
            lock.release()


def on_rank_0(act: Callable[[], Any], group: dist.ProcessGroup | None = None) -> Any:
    """What `act` returns on rank 0, on every rank. If it raises there, every rank raises.

    Ranks on several machines may see a shared folder in different states: one of them looks, for all.
    """
    answer: list[Any] = [None]
    if rank_and_ranks()[0] == 0:
        try:
            answer = [act()]
        except OSError as error:
            answer = [CheckpointError(f"the checkpoint cannot be written ({error}): see that the disk has room")]
        except CheckpointError as error:
            answer = [error]
    if dist.is_initialized():
        dist.broadcast_object_list(answer, group=group)
    if isinstance(answer[0], CheckpointError):
        raise answer[0]
    return answer[0]


def _sums_of_all_parts(aside: Path, group: dist.ProcessGroup | None) -> dict[str, str]:
    """The sums of what all ranks have written, on every rank: each reads its own part."""
    rank, ranks = rank_and_ranks()
    ours: list[Any] = [None] * ranks
    mine = sums_of(sorted(aside.glob(f"__{rank}_*.distcp")))
    if dist.is_initialized():
        dist.all_gather_object(ours, mine, group=group)
    else:
        ours = [mine]
    return {name: digest for sums in ours for name, digest in sums.items()}


def state_dict_of(strategy: Strategy) -> dict[str, Pieces]:
    """All that this rank has, by a name that says whose it is."""
    pieces: dict[str, Pieces] = {}
    for name, shard in strategy.shards().items():
        pieces[_copy(shard) + f"model.{name}"] = Pieces.of(shard)
        for slot, value in strategy.optimizer.state.get(shard.tensor, {}).items():
            if value is not None:
                value = torch.as_tensor(value)
                _check_slot(shard, name, slot, tuple(value.shape), tuple(shard.tensor.shape))
                pieces[_copy(shard) + f"optimizer.{name}.{slot}"] = Pieces.of(shard, value)
    own = {f"random.{place}": state for place, state in _random_states().items()}
    own |= {f"state.{path}": tensor for path, tensor in _flatten_states(strategy.states) if tensor.numel()}
    own |= {f"buffer.{name}": tensor for name, tensor in strategy.model.named_buffers()}
    return pieces | {_own_prefix() + name: Pieces.whole(tensor) for name, tensor in own.items()}


def _copy(shard: Shard, same_layout: bool = True) -> str:
    """Where ranks have copies that may differ, each has a name of its own; loaded by others, the first one counts."""
    return f"copy-{shard.copy}." if shard.copy and same_layout else ""


def _own_prefix() -> str:
    return f"rank-{rank_and_ranks()[0]}."


def _check_slot(shard: Shard, name: str, slot: str, shape: tuple[int, ...], parameters: tuple[int, ...]) -> None:
    """Refuse what an optimizer keeps for a part of a parameter in a form of its own: nobody knows how it is cut."""
    if shard.ranges is not None and shape not in ((), parameters):
        raise CheckpointError(
            f"the optimizer keeps {slot} of shape {shape} for {name}, which is cut over ranks: such a state cannot be "
            "saved or loaded in parts. Use an optimizer that keeps numbers of the parameter's own shape, like Adam"
        )


def _check_same_optimizer(checkpoint: Checkpoint, strategy: Strategy) -> None:
    ours = type(strategy.optimizer).__name__
    if checkpoint.optimizer not in ("", ours):
        raise CheckpointError(
            f"{checkpoint.path} was saved with {checkpoint.optimizer}, and this run has {ours}, which keeps other "
            "numbers: go on with the same optimizer"
        )


def _empty_slot(shard: Shard, name: str, slot: str, saved: Any) -> Tensor:
    """Room for what an optimizer keeps for a parameter: cut as the shard, or whole: a number of steps, say."""
    _check_slot(shard, name, slot, tuple(saved.size), tuple(shard.shape))
    if tuple(saved.size) == tuple(shard.shape):
        return torch.empty_like(shard.tensor, dtype=saved.properties.dtype, requires_grad=False)
    return torch.empty(saved.size, dtype=saved.properties.dtype)


def _empty_own(saved: Mapping[str, Any]) -> NamedTensors:
    """Room for this rank's random numbers and carried states."""
    own = {key: entry for key, entry in saved.items() if key.startswith(_own_prefix())}
    return {key: torch.empty(entry.size, dtype=entry.properties.dtype) for key, entry in own.items()}


def _restore_optimizer(strategy: Strategy, slots: Mapping[Tensor, NamedTensors]) -> None:
    ordered = [parameter for group in strategy.optimizer.param_groups for parameter in group["params"]]
    state = {place: slots[parameter] for place, parameter in enumerate(ordered) if parameter in slots}
    now = strategy.optimizer.state_dict()
    strategy.optimizer.load_state_dict({"state": state, "param_groups": now["param_groups"]})


def _restore_rank(strategy: Strategy, loaded: NamedTensors) -> None:
    """This rank's random numbers, carried states and buffers, if it has the same part of the same work as before."""
    own = {key.removeprefix(_own_prefix()): tensor for key, tensor in loaded.items()}
    if "random.cpu" in own:
        torch.set_rng_state(own["random.cpu"])
    if "random.cuda" in own and device().type == "cuda":
        torch.cuda.set_rng_state(own["random.cuda"], device())
    states = {key.removeprefix("state."): tensor for key, tensor in own.items() if key.startswith("state.")}
    strategy.states = _nest_states(states, strategy.device)
    for name, buffer in strategy.model.named_buffers():
        if f"buffer.{name}" in own:
            buffer.copy_(own[f"buffer.{name}"])


def _random_states() -> NamedTensors:
    here = device()
    return {"cpu": torch.get_rng_state()} | ({"cuda": torch.cuda.get_rng_state(here)} if here.type == "cuda" else {})


def _flatten_states(states: StatesByMicroBatch) -> Iterator[tuple[str, Tensor]]:
    """The carried states as (path, tensor): micro-batch, block, and h or c: `0.1.h`."""
    for micro_batch, of_blocks in states.items():
        for place, (h, c) in of_blocks.items():
            yield f"{micro_batch}.{place}.h", h
            yield f"{micro_batch}.{place}.c", c


def _nest_states(flat: NamedTensors, where: torch.device) -> StatesByMicroBatch:
    states: StatesByMicroBatch = {}
    for path in {path.rpartition(".")[0] for path in flat}:
        micro_batch, place = map(int, path.split("."))
        states.setdefault(micro_batch, {})[place] = (flat[f"{path}.h"].to(where), flat[f"{path}.c"].to(where))
    return states


def _parts_of(strategy: Strategy, sampled: bool = False) -> list[Outlines]:
    """Who has what of the model, seen to be the whole of it; the same on every rank."""
    check_is_strategy(strategy)
    parts = gather_outlines(strategy.checked_shards(), sampled=sampled)
    check_outlines(parts)
    return parts


def _parameters(parts: list[Outlines]) -> dict[str, list]:
    """Shape and dtype of the whole model's parameters."""
    outlines = {name: outline for part in parts for name, outline in part.items()}
    return {name: [list(outline.shape), outline.dtype] for name, outline in sorted(outlines.items())}


def _layout(strategy: Strategy, parts: list[Outlines]) -> dict[str, Any]:
    """Who has what. On the same layout a rank finds its own random numbers and carried states again."""
    layout = {
        "strategy": type(strategy).__name__,
        "ranks": len(parts),
        "micro_batches": strategy.micro_batches,
        "parts": [
            {name: [outline.copy, [str(box) for box in outline.boxes]] for name, outline in part.items()}
            for part in parts
        ],
    }
    return json.loads(json.dumps(layout))  # as it will be read: lists, no tuples


def _in_words(layout: Mapping[str, Any]) -> str:
    ranks = "1 rank" if layout["ranks"] == 1 else f"{layout['ranks']} ranks"
    pieces = f" in {layout['micro_batches']} micro-batches" if layout["micro_batches"] > 1 else ""
    return f"{layout['strategy']} on {ranks}{pieces}"


def _check_same_model(checkpoint: Checkpoint, ours: dict[str, list]) -> None:
    theirs = checkpoint.parameters
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            raise CheckpointError(
                f"{checkpoint.path} is of another model: it has {_describe(name, theirs)}, and this one has "
                f"{_describe(name, ours)}. {_advice(theirs.get(name), ours.get(name))}"
            )


def _advice(theirs: list | None, ours: list | None) -> str:
    if theirs and ours and theirs[0] == ours[0]:
        return "Give the model that type: model.double(), model.float()"
    return "Give the hidden, layers and data that it was trained with"


def _describe(name: str, parameters: dict[str, list]) -> str:
    if name not in parameters:
        return f"no {name}"
    shape, dtype = parameters[name]
    return f"{name} of shape {tuple(shape)} in {dtype.removeprefix('torch.')}"
