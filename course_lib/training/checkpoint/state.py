"""What a rank saves of a strategy, as tensors with the whole model's names; and whether a run fits a checkpoint.

Most of these tensors are the strategy's own memory, so what is loaded into them is restored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from course_lib.machine import device
from course_lib.strategies.base import StatesByMicroBatch, Strategy, rank_and_ranks
from course_lib.strategies.shards import NamedTensors, Offsets, Outlines, Shard
from course_lib.training.checkpoint.folder import Checkpoint, CheckpointError
from course_lib.words import counted


class SplitTensor(Tensor):
    """This rank's pieces of a tensor, by their offsets in the whole. It has the whole's shape, and no numbers itself.

    The methods with underscores are how `torch.distributed.checkpoint` asks what a rank has. It writes a piece only
    once if several ranks have it, and assembles the pieces that a rank needs from the saved ones. (A `DTensor` splits a
    dimension evenly over a mesh; our ranks may have, say, some rows of each of an LSTM's gates.)
    """

    pieces: dict[Offsets, Tensor]

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: torch.dtype, pieces: Mapping[Offsets, Tensor]) -> SplitTensor:
        """Return a tensor of this shape, of which this rank has these pieces."""
        tensor = torch.empty((), dtype=dtype).expand(shape).as_subclass(cls)
        tensor.pieces = {offsets: piece for offsets, piece in pieces.items() if piece.numel()}
        return tensor

    def __create_chunk_list__(self) -> list[Any]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [ChunkStorageMetadata(torch.Size(offsets), piece.shape) for offsets, piece in self.pieces.items()]

    def __create_write_items__(self, name: str, _: Any) -> list[Any]:
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        facts = [
            TensorWriteData(chunk, TensorProperties(self.dtype), self.size()) for chunk in self.__create_chunk_list__()
        ]
        return [
            WriteItem(MetadataIndex(name, each.chunk.offsets), WriteItemType.SHARD, tensor_data=each) for each in facts
        ]

    def __get_tensor_shard__(self, index: Any) -> Tensor:
        return self.pieces[tuple(index.offset)]


def copied(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU, which the next update does not change."""
    if isinstance(tensor, SplitTensor):
        return SplitTensor.of(tensor.shape, tensor.dtype, {at: copied(piece) for at, piece in tensor.pieces.items()})
    return tensor.detach().to("cpu", copy=True)


def parameters_of(parts: Iterable[Outlines]) -> dict[str, list]:
    """Return the shape and dtype of each of the whole model's parameters, from the outlines of all ranks."""
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


def in_words(layout: Mapping[str, Any]) -> str:
    """Return the layout in words: `Pipeline on 4 ranks in 2 micro-batches`."""
    pieces = f" in {layout['micro_batches']} micro-batches" if layout["micro_batches"] > 1 else ""
    return f"{layout['strategy']} on {counted(layout['ranks'], 'rank')}{pieces}"


def tensors_of(strategy: Strategy) -> NamedTensors:
    """Return everything that this rank has. Each name includes the parameter or the rank that it belongs to."""
    tensors: NamedTensors = {}
    for name, shard in strategy.shards().items():
        tensors[_name(shard, f"model.{name}")] = _split(shard, shard.tensor)
        tensors |= {_name(shard, slot): value for slot, value in _slots_of(strategy.optimizer, name, shard).items()}
    tensors |= {f"{_this_rank()}buffer.{name}": buffer for name, buffer in strategy.model.named_buffers()}
    tensors[f"{_this_rank()}random.cpu"] = torch.get_rng_state()
    if device().type == "cuda":
        tensors[f"{_this_rank()}random.cuda"] = torch.cuda.get_rng_state(device())
    for micro_batch, of_blocks in strategy.states.items():
        for place, (h, c) in of_blocks.items():
            if h.numel():
                key = f"{_this_rank()}state.{micro_batch}.{place}"
                tensors |= {f"{key}.h": h, f"{key}.c": c}
    return tensors


def _name(shard: Shard, name: str, same_layout: bool = True) -> str:
    """Return the name with the copy's number, if copies may differ between ranks. Other layouts load the first copy."""
    return f"copy-{shard.copy}.{name}" if shard.copy and same_layout else name


def _this_rank() -> str:
    return f"rank-{rank_and_ranks()[0]}."


def _slots_of(optimizer: Optimizer, name: str, shard: Shard) -> NamedTensors:
    """Return what the optimizer keeps for a parameter, by names like `optimizer.blocks.0.lstm.bias_hh_l0.exp_avg`."""
    state = optimizer.state.get(shard.tensor, {})
    slots = {slot: torch.as_tensor(value) for slot, value in state.items() if value is not None}
    for slot, value in slots.items():
        if shard.ranges is not None and value.dim() and value.shape != shard.tensor.shape:
            raise CheckpointError(
                f"the optimizer keeps {slot} of shape {tuple(value.shape)} for {name}, which is split across ranks: "
                "such state cannot be saved in parts. Use an optimizer whose state has the parameter's shape, like Adam"
            )
    return {f"optimizer.{name}.{slot}": _split(shard, value) for slot, value in slots.items()}


def _split(shard: Shard, values: Tensor) -> Tensor:
    """Return values that are cut like the shard as its pieces; others, like a step count, are whole on every rank."""
    if values.shape != shard.tensor.shape:
        return values.detach()
    return SplitTensor.of(shard.shape, values.dtype, dict(shard.pieces(values=values)))


def targets_of(strategy: Strategy, checkpoint: Checkpoint, saved: Mapping[str, Any]) -> NamedTensors:
    """Return the tensors to load into, by their saved names. `saved` describes each tensor of the checkpoint."""
    same_layout, ranks = checkpoint.same_layout, range(checkpoint.layout["ranks"])
    make_slots(strategy.optimizer)
    check_same_optimizer(checkpoint, strategy.optimizer)
    targets: NamedTensors = {}
    for name, shard in strategy.shards().items():
        targets[_name(shard, f"model.{name}", same_layout)] = _split(shard, shard.tensor)
        slots = _slots_of(strategy.optimizer, name, shard)
        slots = {_name(shard, slot, same_layout): value for slot, value in slots.items()}
        if slots.keys() <= saved.keys():
            targets |= slots
        else:  # the parameter had not had a gradient yet
            del strategy.optimizer.state[shard.tensor]
    for name, buffer in strategy.model.named_buffers():
        holders = [_this_rank()] if same_layout else [f"rank-{rank}." for rank in ranks]
        keys = [f"{holder}buffer.{name}" for holder in holders]
        key = next((key for key in keys if key in saved and saved[key].size == buffer.shape), None)
        if key is None:
            raise CheckpointError(
                f"{checkpoint.path} belongs to another model: it has no buffer {name} of shape {tuple(buffer.shape)}. "
                "Give the model that it was trained with"
            )
        targets[key] = buffer
    if same_layout:
        own = (f"{_this_rank()}random.", f"{_this_rank()}state.")
        tensors = {key: entry for key, entry in saved.items() if key.startswith(own)}
        targets |= {key: torch.empty(entry.size, dtype=entry.properties.dtype) for key, entry in tensors.items()}
    return targets


def make_slots(optimizer: Optimizer) -> None:
    """Let an optimizer make its state, to load into, by a step on zero gradients. The load overwrites the weights."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if not all(optimizer.state.get(parameter) for parameter in parameters):
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    for slots in optimizer.state.values():
        slots |= {slot: torch.tensor(value) for slot, value in slots.items() if isinstance(value, int | float)}


def restore_rank(strategy: Strategy, loaded: NamedTensors) -> None:
    """Set this rank's random number generators and carried states to those that were loaded, if any."""
    if (state := loaded.get(f"{_this_rank()}random.cpu")) is not None:
        torch.set_rng_state(state)
    if (state := loaded.get(f"{_this_rank()}random.cuda")) is not None and device().type == "cuda":
        torch.cuda.set_rng_state(state, device())
    states: StatesByMicroBatch = {}
    for key in loaded:
        if key.startswith(f"{_this_rank()}state.") and key.endswith(".h"):
            micro_batch, place = map(int, key.split(".")[2:4])
            h, c = (loaded[key[:-1] + letter].to(strategy.device) for letter in "hc")
            states.setdefault(micro_batch, {})[place] = (h, c)
    strategy.states = states


def describe_optimizer(optimizer: Optimizer) -> str:
    """Return an optimizer's name and what it keeps for a parameter, `Adam (exp_avg, exp_avg_sq, step)`."""
    slots = {slot for state in optimizer.state.values() for slot, value in state.items() if value is not None}
    return f"{type(optimizer).__name__} ({', '.join(sorted(slots))})"


def check_same_optimizer(checkpoint: Checkpoint, optimizer: Optimizer) -> None:
    """Refuse a checkpoint from an optimizer that keeps different state: another class, or other options."""
    saved, current = checkpoint.optimizer, describe_optimizer(optimizer)
    if saved and current != saved and not current.startswith(f"{saved} ("):  # version 1.0 saved the name alone
        raise CheckpointError(
            f"{checkpoint.path} was saved with {saved}, and this run has {current}, which keeps different state: "
            "continue with the same optimizer, with the same options"
        )


def check_same_model(checkpoint: Checkpoint, parameters: Mapping[str, list]) -> None:
    """Refuse a checkpoint whose parameters have different names, shapes or dtypes."""

    def describe(name: str, parameters: Mapping[str, list]) -> str:
        if name not in parameters:
            return f"no {name}"
        shape, dtype = parameters[name]
        return f"{name} of shape {tuple(shape)} in {dtype.removeprefix('torch.')}"

    for name in sorted(checkpoint.parameters.keys() | parameters.keys()):
        if checkpoint.parameters.get(name) != parameters.get(name):
            raise CheckpointError(
                f"{checkpoint.path} belongs to another model: it has {describe(name, checkpoint.parameters)}, and this "
                f"one has {describe(name, parameters)}. Give the model, sizes and dtype that it was trained with"
            )
