"""What a rank has to save, by names of the whole model, and how it is given back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from course_lib.machine import device
from course_lib.strategies import Strategy
from course_lib.strategies.base import StatesByMicroBatch, rank_and_ranks
from course_lib.strategies.shards import NamedTensors, Shard
from course_lib.training.checkpoint.folder import Checkpoint, CheckpointError
from course_lib.training.checkpoint.pieces import Pieces

BUFFER = re.compile(r"rank-(\d+)\.buffer\.(.+)")


def state_dict_of(strategy: Strategy) -> dict[str, Pieces]:
    """All that this rank has, by a name that says whose it is."""
    pieces: dict[str, Pieces] = {}
    for name, shard in strategy.shards().items():
        pieces[copy_name(shard) + f"model.{name}"] = Pieces.of(shard)
        for slot, value in strategy.optimizer.state.get(shard.tensor, {}).items():
            if value is not None:
                value = torch.as_tensor(value)
                _check_slot(shard, name, slot, tuple(value.shape), tuple(shard.tensor.shape))
                pieces[copy_name(shard) + f"optimizer.{name}.{slot}"] = Pieces.of(shard, value)
    own = {f"random.{place}": state for place, state in _random_states().items()}
    own |= {f"state.{path}": tensor for path, tensor in _flatten_states(strategy.states) if tensor.numel()}
    own |= {f"buffer.{name}": tensor for name, tensor in strategy.model.named_buffers()}
    return pieces | {_own_prefix() + name: Pieces.whole(tensor) for name, tensor in own.items()}


def copy_name(shard: Shard, same_layout: bool = True) -> str:
    """Where ranks have copies that may differ, each has a name of its own; loaded by others, the first one counts."""
    return f"copy-{shard.copy}." if shard.copy and same_layout else ""


def empty_slot(shard: Shard, name: str, slot: str, saved: Any) -> Tensor:
    """Room for what an optimizer keeps for a parameter: cut as the shard, or whole: a number of steps, say."""
    _check_slot(shard, name, slot, tuple(saved.size), tuple(shard.shape))
    if tuple(saved.size) == tuple(shard.shape):
        return torch.empty_like(shard.tensor, dtype=saved.properties.dtype, requires_grad=False)
    return torch.empty(saved.size, dtype=saved.properties.dtype)


def own_keys(saved: Mapping[str, Any]) -> list[str]:
    """Of what was saved, this rank's random numbers and carried states."""
    return [key for key in saved if key.startswith(_own_prefix()) and not BUFFER.fullmatch(key)]


def empty(entry: Any) -> Tensor:
    """Room for a tensor that was saved whole."""
    return torch.empty(entry.size, dtype=entry.properties.dtype)


def find_buffers(
    checkpoint: Checkpoint, saved: Mapping[str, Any], strategy: Strategy, same_layout: bool
) -> dict[str, str]:
    """For each buffer of this rank's part of the model, where it was saved: by this rank, or the first that had it."""
    found: dict[str, str] = {}
    here = f"{rank_and_ranks()[0]}" if same_layout else ""
    matches = [match for key in saved if (match := BUFFER.fullmatch(key))]
    for match in sorted(matches, key=lambda match: (match[1] != here, int(match[1]))):
        found.setdefault(match[2], match[0])
    for name, buffer in strategy.model.named_buffers():
        if name not in found or tuple(saved[found[name]].size) != tuple(buffer.shape):
            was = f"one of shape {tuple(saved[found[name]].size)}" if name in found else "none"
            raise CheckpointError(
                f"{checkpoint.path} is of another model: this one has a buffer {name} of shape {tuple(buffer.shape)}, "
                f"and that has {was}. Give the model that it was trained with"
            )
    return {name: found[name] for name, _ in strategy.model.named_buffers()}


def restore_buffers(strategy: Strategy, loaded: NamedTensors) -> None:
    """Give the model its buffers, by their names in it."""
    with torch.no_grad():
        for name, buffer in strategy.model.named_buffers():
            buffer.copy_(loaded[name])


def _check_slot(shard: Shard, name: str, slot: str, shape: tuple[int, ...], parameters: tuple[int, ...]) -> None:
    """Refuse what an optimizer keeps for a part of a parameter in a form of its own: nobody knows how it is cut."""
    if shard.ranges is not None and shape not in ((), parameters):
        raise CheckpointError(
            f"the optimizer keeps {slot} of shape {shape} for {name}, which is cut over ranks: such a state cannot be "
            "saved or loaded in parts. Use an optimizer that keeps numbers of the parameter's own shape, like Adam"
        )


def restore_optimizer(strategy: Strategy, slots: Mapping[Tensor, NamedTensors]) -> None:
    """Give the optimizer what it kept for each parameter."""
    ordered = [parameter for group in strategy.optimizer.param_groups for parameter in group["params"]]
    state = {place: slots[parameter] for place, parameter in enumerate(ordered) if parameter in slots}
    now = strategy.optimizer.state_dict()
    strategy.optimizer.load_state_dict({"state": state, "param_groups": now["param_groups"]})


def restore_rank(strategy: Strategy, loaded: NamedTensors) -> None:
    """This rank's random numbers and carried states, if it has the same part of the same work as before."""
    own = {key.removeprefix(_own_prefix()): tensor for key, tensor in loaded.items()}
    if "random.cpu" in own:
        torch.set_rng_state(own["random.cpu"])
    if "random.cuda" in own and device().type == "cuda":
        torch.cuda.set_rng_state(own["random.cuda"], device())
    states = {key.removeprefix("state."): tensor for key, tensor in own.items() if key.startswith("state.")}
    strategy.states = _nest_states(states, strategy.device)


def _own_prefix() -> str:
    return f"rank-{rank_and_ranks()[0]}."


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
