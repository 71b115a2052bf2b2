"""What a rank saves, by the whole model's names; how it is restored; and whether a run fits a checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from course_lib.machine import device
from course_lib.strategies import Strategy
from course_lib.strategies.base import StatesByMicroBatch, rank_and_ranks
from course_lib.strategies.registry import check_is_strategy
from course_lib.strategies.shards import NamedTensors, Offsets, Outlines, Shard, check_outlines, gather_outlines
from course_lib.training.checkpoint.folder import Checkpoint, CheckpointError


@dataclass(frozen=True)
class Pieces:
    """This rank's pieces of a tensor, by their offsets in it; `shape` is the whole tensor's."""

    shape: tuple[int, ...]
    at: dict[Offsets, Tensor]

    @classmethod
    def from_shard(cls, shard: Shard, values: Tensor | None = None) -> Pieces:
        """Return the pieces of a shard, or of `values`: cut like the shard, or whole if their shape differs."""
        values = shard.tensor if values is None else values
        if values.shape != shard.tensor.shape:
            return cls.whole(values)
        return cls(tuple(shard.shape), {at: piece for at, piece in shard.pieces(values=values) if piece.numel()})

    @classmethod
    def whole(cls, tensor: Tensor) -> Pieces:
        """Return all of a tensor as one piece."""
        return cls(tuple(tensor.shape), {(0,) * tensor.dim(): tensor.detach()})

    def copied(self) -> Pieces:
        """Return a copy that the next update does not change."""
        return Pieces(self.shape, {at: piece.to("cpu", copy=True) for at, piece in self.at.items()})


def parts_of(strategy: Strategy, sampled: bool = False) -> list[Outlines]:
    """Return each rank's outlines, after checking that they form the whole model; the same on every rank."""
    check_is_strategy(strategy)
    parts = gather_outlines(strategy.checked_shards(), sampled=sampled)
    check_outlines(parts)
    return parts


def parameters_of(parts: list[Outlines]) -> dict[str, list]:
    """Return the shape and dtype of each of the whole model's parameters."""
    outlines = {name: outline for part in parts for name, outline in part.items()}
    return {name: [list(outline.shape), outline.dtype] for name, outline in sorted(outlines.items())}


def layout_of(strategy: Strategy, parts: list[Outlines]) -> dict[str, Any]:
    """Return which rank has which part. With the same layout, a rank can restore its random and carried states."""
    layout = {
        "strategy": type(strategy).__name__,
        "ranks": len(parts),
        "micro_batches": strategy.micro_batches,
        "parts": [
            {name: [outline.copy, [str(box) for box in outline.boxes]] for name, outline in part.items()}
            for part in parts
        ],
    }
    return json.loads(json.dumps(layout))  # as JSON reads it back: lists, not tuples


def is_same_layout(checkpoint: Checkpoint, strategy: Strategy) -> bool:
    """Return whether each rank has the same part as when the checkpoint was saved. All ranks must call this."""
    return checkpoint.layout == layout_of(strategy, parts_of(strategy))


def in_words(layout: Mapping[str, Any]) -> str:
    """Return the layout in words: `Pipeline on 4 ranks in 2 micro-batches`."""
    ranks = "1 rank" if layout["ranks"] == 1 else f"{layout['ranks']} ranks"
    pieces = f" in {layout['micro_batches']} micro-batches" if layout["micro_batches"] > 1 else ""
    return f"{layout['strategy']} on {ranks}{pieces}"


def check_same_model(checkpoint: Checkpoint, parameters: dict[str, list]) -> None:
    """Refuse a checkpoint whose parameters have different names, shapes or dtypes."""
    saved = checkpoint.parameters
    for name in sorted(saved.keys() | parameters.keys()):
        if saved.get(name) != parameters.get(name):
            raise CheckpointError(
                f"{checkpoint.path} belongs to another model: it has {_describe(name, saved)}, and this one has "
                f"{_describe(name, parameters)}. {_advice(saved.get(name), parameters.get(name))}"
            )


def check_same_optimizer(checkpoint: Checkpoint, strategy: Strategy) -> None:
    """Refuse a checkpoint from an optimizer that keeps different state."""
    optimizer = type(strategy.optimizer).__name__
    if checkpoint.optimizer not in ("", optimizer):
        raise CheckpointError(
            f"{checkpoint.path} was saved with {checkpoint.optimizer}, and this run has {optimizer}, which keeps "
            "different state: continue with the same optimizer"
        )


def check_same_slots(checkpoint: Checkpoint, saved: Iterable[str], strategy: Strategy) -> None:
    """Refuse a checkpoint from the same optimizer if its options give it different state: amsgrad, momentum."""
    saved_slots = {key.rpartition(".")[2] for key in saved if re.match(r"(copy-[^.]+\.)?optimizer\.", key)}
    slots = _slots_of(strategy.optimizer)
    if not saved_slots or slots is None or saved_slots == slots:
        return
    name = type(strategy.optimizer).__name__
    raise CheckpointError(
        f"{checkpoint.path} was saved with {name} keeping {_listed(saved_slots)} for each parameter, and in this run "
        f"it keeps {_listed(slots)}: give the optimizer the same options"
    )


def _slots_of(optimizer: Optimizer) -> set[str] | None:
    """Return the names of an optimizer's state for a parameter, from a trial step; None if the step fails."""
    try:
        parameter = torch.nn.Parameter(torch.zeros(1, 1))
        trial = type(optimizer)([parameter], **optimizer.defaults)
        parameter.grad = torch.zeros_like(parameter)
        trial.step()
        return {slot for slot, value in trial.state[parameter].items() if value is not None}
    except Exception:  # a user's optimizer may need anything
        return None


def _listed(slots: set[str]) -> str:
    return ", ".join(sorted(slots)) or "nothing"


def _advice(saved: list | None, current: list | None) -> str:
    if saved and current and saved[0] == current[0]:
        return "Convert the model to that dtype: model.double(), model.float()"
    return "Give the hidden, layers and data that it was trained with"


def _describe(name: str, parameters: dict[str, list]) -> str:
    if name not in parameters:
        return f"no {name}"
    shape, dtype = parameters[name]
    return f"{name} of shape {tuple(shape)} in {dtype.removeprefix('torch.')}"


BUFFER = re.compile(r"rank-(\d+)\.buffer\.(.+)")


def state_dict_of(strategy: Strategy) -> dict[str, Pieces]:
    """Return everything that this rank has. Each name includes the rank or parameter it belongs to."""
    pieces: dict[str, Pieces] = {}
    for name, shard in strategy.shards().items():
        pieces[copy_name(shard) + f"model.{name}"] = Pieces.from_shard(shard)
        for slot, value in strategy.optimizer.state.get(shard.tensor, {}).items():
            if value is not None:
                value = torch.as_tensor(value)
                _check_slot(shard, name, slot, tuple(value.shape), tuple(shard.tensor.shape))
                pieces[copy_name(shard) + f"optimizer.{name}.{slot}"] = Pieces.from_shard(shard, value)
    rank_state = {f"random.{place}": state for place, state in _random_states().items()}
    rank_state |= {f"state.{path}": tensor for path, tensor in _flatten_states(strategy.states) if tensor.numel()}
    rank_state |= {f"buffer.{name}": tensor for name, tensor in strategy.model.named_buffers()}
    return pieces | {_rank_prefix() + name: Pieces.whole(tensor) for name, tensor in rank_state.items()}


def copy_name(shard: Shard, same_layout: bool = True) -> str:
    """Return the prefix for copies that may differ between ranks. With a different layout, the first copy is loaded."""
    return f"copy-{shard.copy}." if shard.copy and same_layout else ""


def empty_slot(shard: Shard, name: str, slot: str, saved: Any) -> Tensor:
    """Return an empty tensor for an optimizer slot: cut like the shard, or whole, like a step count."""
    _check_slot(shard, name, slot, tuple(saved.size), tuple(shard.shape))
    if tuple(saved.size) == tuple(shard.shape):
        return torch.empty_like(shard.tensor, dtype=saved.properties.dtype, requires_grad=False)
    return torch.empty(saved.size, dtype=saved.properties.dtype)


def rank_keys(saved: Mapping[str, Any]) -> list[str]:
    """Return the keys of this rank's saved random numbers and carried states."""
    return [key for key in saved if key.startswith(_rank_prefix()) and not BUFFER.fullmatch(key)]


def empty(entry: Any) -> Tensor:
    """Return an empty tensor to load one that was saved whole."""
    return torch.empty(entry.size, dtype=entry.properties.dtype)


def find_buffers(
    checkpoint: Checkpoint, saved: Mapping[str, Any], strategy: Strategy, same_layout: bool
) -> dict[str, str]:
    """Return the key of each buffer of this rank's part, as saved by this rank, or by the first rank that had it."""
    keys: dict[str, str] = {}
    this_rank = f"{rank_and_ranks()[0]}" if same_layout else ""
    matches = [match for key in saved if (match := BUFFER.fullmatch(key))]
    for match in sorted(matches, key=lambda match: (match[1] != this_rank, int(match[1]))):
        keys.setdefault(match[2], match[0])
    for name, buffer in strategy.model.named_buffers():
        if name not in keys or tuple(saved[keys[name]].size) != tuple(buffer.shape):
            instead = f"one of shape {tuple(saved[keys[name]].size)}" if name in keys else "none"
            raise CheckpointError(
                f"{checkpoint.path} belongs to another model: this one has a buffer {name} of shape "
                f"{tuple(buffer.shape)}, and the saved one has {instead}. Give the model that it was trained with"
            )
    return {name: keys[name] for name, _ in strategy.model.named_buffers()}


def restore_buffers(strategy: Strategy, loaded: NamedTensors) -> None:
    """Copy the loaded buffers into the model, by name."""
    with torch.no_grad():
        for name, buffer in strategy.model.named_buffers():
            buffer.copy_(loaded[name])


def _check_slot(shard: Shard, name: str, slot: str, shape: tuple[int, ...], parameters: tuple[int, ...]) -> None:
    """Refuse a slot shaped unlike its parameter if that is split across ranks: we cannot know how to cut it."""
    if shard.ranges is not None and shape not in ((), parameters):
        raise CheckpointError(
            f"the optimizer keeps {slot} of shape {shape} for {name}, which is split across ranks: such state cannot "
            "be saved or loaded in parts. Use an optimizer whose state has the parameter's shape, like Adam"
        )


def restore_optimizer(strategy: Strategy, slots: Mapping[Tensor, NamedTensors]) -> None:
    """Restore the optimizer's state for each parameter."""
    ordered = [parameter for group in strategy.optimizer.param_groups for parameter in group["params"]]
    state = {place: slots[parameter] for place, parameter in enumerate(ordered) if parameter in slots}
    now = strategy.optimizer.state_dict()
    strategy.optimizer.load_state_dict({"state": state, "param_groups": now["param_groups"]})


def restore_rank(strategy: Strategy, loaded: NamedTensors) -> None:
    """Restore this rank's random numbers and carried states, if they were loaded."""
    rank_state = {key.removeprefix(_rank_prefix()): tensor for key, tensor in loaded.items()}
    if "random.cpu" in rank_state:
        torch.set_rng_state(rank_state["random.cpu"])
    if "random.cuda" in rank_state and device().type == "cuda":
        torch.cuda.set_rng_state(rank_state["random.cuda"], device())
    states = {key.removeprefix("state."): tensor for key, tensor in rank_state.items() if key.startswith("state.")}
    strategy.states = _nest_states(states, strategy.device)


def _rank_prefix() -> str:
    return f"rank-{rank_and_ranks()[0]}."


def _random_states() -> NamedTensors:
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state(device())} if device().type == "cuda" else {})


def _flatten_states(states: StatesByMicroBatch) -> Iterator[tuple[str, Tensor]]:
    """Yield the carried states as (path, tensor), with the path micro-batch, block, and h or c: `0.1.h`."""
    for micro_batch, of_blocks in states.items():
        for place, (h, c) in of_blocks.items():
            yield f"{micro_batch}.{place}.h", h
            yield f"{micro_batch}.{place}.c", c


def _nest_states(flat: NamedTensors, target: torch.device) -> StatesByMicroBatch:
    states: StatesByMicroBatch = {}
    for path in {path.rpartition(".")[0] for path in flat}:
        micro_batch, place = map(int, path.split("."))
        states.setdefault(micro_batch, {})[place] = (flat[f"{path}.h"].to(target), flat[f"{path}.c"].to(target))
    return states
