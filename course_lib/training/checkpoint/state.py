"""What a rank saves of a strategy, as tensors with the whole model's names; and whether a run fits a checkpoint.

Most of these tensors are the strategy's own memory, so what is loaded into them is restored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from course_lib.strategies.base import Strategy, rank_and_ranks
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

        items, properties = [], TensorProperties(self.dtype)
        for chunk in self.__create_chunk_list__():
            data = TensorWriteData(chunk, properties, self.size())
            items.append(WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=data))
        return items

    def __get_tensor_shard__(self, index: Any) -> Tensor:
        return self.pieces[tuple(index.offset)]


def copied(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU, which the next update does not change."""
    if isinstance(tensor, SplitTensor):
        return SplitTensor.of(tensor.shape, tensor.dtype, {at: copied(piece) for at, piece in tensor.pieces.items()})
    return tensor.detach().to("cpu", copy=True)


def parameters_of(parts: list[Outlines]) -> dict[str, list]:
    """Return the shape and dtype of each of the whole model's parameters, from the outlines of all ranks."""
    outlines = {name: outline for part in parts for name, outline in part.items()}
    return {name: [list(outline.shape), outline.dtype] for name, outline in sorted(outlines.items())}


def layout_of(strategy: Strategy, parts: list[Outlines]) -> dict[str, Any]:
    """Return which rank has which part. With the same layout, a rank can restore its random and carried states."""
    boxes = [{name: [each.copy, list(map(str, each.boxes))] for name, each in part.items()} for part in parts]
    facts = {"strategy": type(strategy).__name__, "ranks": len(parts), "micro_batches": strategy.micro_batches}
    return {**facts, "parts": boxes}


def in_words(layout: Mapping[str, Any]) -> str:
    """Return the layout in words: `Pipeline on 4 ranks in 2 micro-batches`."""
    pieces = f" in {layout['micro_batches']} micro-batches" if layout["micro_batches"] > 1 else ""
    return f"{layout['strategy']} on {counted(layout['ranks'], 'rank')}{pieces}"


def tensors_of(strategy: Strategy) -> NamedTensors:
    """Return everything that this rank has. Each name includes the parameter or the rank that it belongs to."""
    rank = rank_and_ranks()[0]
    tensors: NamedTensors = {}
    for _, weights, slots in _of_parameters(strategy):
        tensors |= weights | slots
    tensors |= {f"rank-{rank}.buffer.{name}": buffer for name, buffer in strategy.model.named_buffers()}
    tensors[f"rank-{rank}.random.cpu"] = torch.get_rng_state()
    if strategy.device.type == "cuda":
        tensors[f"rank-{rank}.random.cuda"] = torch.cuda.get_rng_state(strategy.device)
    for micro_batch, of_blocks in strategy.states.items():
        for place, (h, c) in of_blocks.items():
            if h.numel():
                key = f"rank-{rank}.state.{micro_batch}.{place}"
                tensors |= {f"{key}.h": h, f"{key}.c": c}
    return tensors


def targets_of(strategy: Strategy, checkpoint: Checkpoint, saved: Mapping[str, Any]) -> NamedTensors:
    """Return the tensors to load into, by their saved names. `saved` describes each tensor of the checkpoint."""
    rank = rank_and_ranks()[0]
    targets: NamedTensors = {}
    for shard, weights, slots in _of_parameters(strategy, checkpoint.same_layout):
        targets |= weights
        if slots.keys() <= saved.keys():
            targets |= slots
        else:  # the parameter had not had a gradient yet
            del strategy.optimizer.state[shard.tensor]
    for name, buffer in strategy.model.named_buffers():
        holders = [rank] if checkpoint.same_layout else range(checkpoint.layout["ranks"])
        keys = [f"rank-{holder}.buffer.{name}" for holder in holders]
        key = next((key for key in keys if key in saved and saved[key].size == buffer.shape), None)
        if key is None:
            raise CheckpointError(
                f"{checkpoint.path} belongs to another model: it has no buffer {name} of shape {tuple(buffer.shape)}. "
                "Give the model that it was trained with"
            )
        targets[key] = buffer
    if checkpoint.same_layout:
        for key, entry in saved.items():
            if key.startswith((f"rank-{rank}.random.", f"rank-{rank}.state.")):
                targets[key] = torch.empty(entry.size, dtype=entry.properties.dtype)
    return targets


def _of_parameters(strategy: Strategy, same_layout: bool = True) -> Iterator[tuple[Shard, NamedTensors, NamedTensors]]:
    """Yield each parameter's shard, its weights, and its optimizer's slots, like `optimizer.blocks.0.weight.exp_avg`.

    If copies may differ between ranks, a name has the copy's number. Another layout loads the first copy.
    """
    for name, shard in strategy.shards().items():
        copy = f"copy-{shard.copy}." if shard.copy and same_layout else ""
        slots: NamedTensors = {}
        for slot, number in strategy.optimizer.state.get(shard.tensor, {}).items():
            if number is None:  # like the momentum of SGD without any
                continue
            value = torch.as_tensor(number)
            if shard.ranges is not None and value.dim() and value.shape != shard.tensor.shape:
                raise CheckpointError(
                    f"the optimizer keeps {slot} of shape {tuple(value.shape)} for {name}, which is split across ranks:"
                    " such state cannot be saved in parts. Use an optimizer whose state has the parameter's shape, like"
                    " Adam"
                )
            slots[f"{copy}optimizer.{name}.{slot}"] = _split(shard, value)
        yield shard, {f"{copy}model.{name}": _split(shard, shard.tensor)}, slots


def _split(shard: Shard, values: Tensor) -> Tensor:
    """Return values that are cut like the shard as its pieces; others, like a step count, are whole on every rank."""
    if values.shape != shard.tensor.shape:
        return values.detach()
    return SplitTensor.of(shard.shape, values.dtype, dict(shard.pieces(values=values)))


@contextlib.contextmanager
def slots_to_load(optimizer: Optimizer) -> Iterator[None]:
    """Let an optimizer make its state, to load into; if the load is refused, the state is as before.

    It steps on zero gradients at a learning rate of 0, which changes no weight, not even with weight decay.
    """
    before = {parameter: dict(slots) for parameter, slots in optimizer.state.items()}
    parameters = trained_by(optimizer)
    gradients = [parameter.grad for parameter in parameters]
    rates = [(group, group["lr"]) for group in optimizer.param_groups if "lr" in group]
    try:
        for parameter in parameters:  # the step leaves out those without a gradient
            parameter.grad = None if before.get(parameter) else torch.zeros_like(parameter)
        for group, rate in rates:
            group["lr"] = torch.zeros_like(rate) if isinstance(rate, Tensor) else 0.0
        optimizer.step()
    finally:
        for group, rate in rates:
            group["lr"] = rate
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
    for slots in optimizer.state.values():
        slots |= {slot: torch.tensor(value) for slot, value in slots.items() if isinstance(value, int | float)}
    try:
        yield
    except Exception:
        optimizer.state.clear()
        optimizer.state.update(before)
        raise


def trained_by(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters that the optimizer changes: a rank whose blocks are all frozen has none."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]


def restore_rank(strategy: Strategy, loaded: NamedTensors) -> None:
    """Set this rank's random number generators and carried states to those that were loaded, if any."""
    own, strategy.states = f"rank-{rank_and_ranks()[0]}.", {}
    for key, value in loaded.items():
        if key == f"{own}random.cpu":
            torch.set_rng_state(value)
        elif key == f"{own}random.cuda" and strategy.device.type == "cuda":
            torch.cuda.set_rng_state(value, strategy.device)
        elif key.startswith(f"{own}state.") and key.endswith(".h"):
            micro_batch, place = map(int, key.split(".")[2:4])
            h, c = value.to(strategy.device), loaded[f"{key[:-1]}c"].to(strategy.device)
            strategy.states.setdefault(micro_batch, {})[place] = (h, c)


def describe_optimizer(optimizer: Optimizer) -> str:
    """Return an optimizer's name and what it keeps for a parameter, `Adam (exp_avg, exp_avg_sq, step)`."""
    slots = {slot for state in optimizer.state.values() for slot, value in state.items() if value is not None}
    return f"{type(optimizer).__name__} ({', '.join(sorted(slots))})"


def check_same_optimizer(checkpoint: Checkpoint, optimizer: Optimizer) -> None:
    """Refuse a checkpoint from an optimizer that keeps different state: another class, or other options."""
    saved, current = checkpoint.optimizer, describe_optimizer(optimizer)
    is_same = current == saved or current.startswith(f"{saved} (")  # version 1.0 saved the name alone
    if saved and trained_by(optimizer) and not is_same:
        raise CheckpointError(
            f"{checkpoint.path} was saved with {saved}, and this run has {current}, which keeps different state: "
            "continue with the same optimizer, with the same options"
        )


def check_same_model(checkpoint: Checkpoint, parameters: Mapping[str, list]) -> None:
    """Refuse a checkpoint whose parameters have different names, shapes or dtypes."""
    for name in sorted(checkpoint.parameters.keys() | parameters.keys()):
        descriptions = []
        for shape, dtype in (each.get(name, ((), "")) for each in (checkpoint.parameters, parameters)):
            described = f"{name} of shape {tuple(shape)} in {dtype.removeprefix('torch.')}"
            descriptions.append(described if dtype else f"no {name}")
        if descriptions[0] != descriptions[1]:
            raise CheckpointError(
                f"{checkpoint.path} belongs to another model: it has {descriptions[0]}, and this one has "
                f"{descriptions[1]}. Give the model, sizes and dtype that it was trained with"
            )
