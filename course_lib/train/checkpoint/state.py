"""What a rank saves of a strategy, as tensors with the whole model's names; and whether a run fits a checkpoint.

Most of these tensors are the strategy's own memory, so what is loaded into them is restored.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from course_lib.core.shards import NamedTensors, Offsets, Shard, check_outlines, gather_outlines
from course_lib.core.strategy import Strategy, rank_and_ranks
from course_lib.runtime.words import counted
from course_lib.train.checkpoint.files import Checkpoint, CheckpointError


class SplitTensor(Tensor):
    """This rank's pieces of a tensor, by their offsets in the whole. It has the whole's shape, and no numbers itself.

    The methods with underscores are how `torch.distributed.checkpoint` asks what a rank has. It writes a piece only
    once if several ranks have it, and assembles the pieces that a rank needs from the saved ones. (A `DTensor` splits a
    dimension evenly over a mesh; our ranks may have, say, some rows of each of an LSTM's gates.)
    """

    pieces: dict[Offsets, Tensor]

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: torch.dtype, pieces: Mapping[Offsets, Tensor]) -> SplitTensor:
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


def _split(name: str, shard: Shard, values: Tensor) -> Tensor:
    """Return values that are cut like the shard as its pieces; others, like a step count, are whole on every rank."""
    if values.shape == shard.tensor.shape:
        return SplitTensor.of(shard.shape, values.dtype, dict(shard.pieces(values=values)))
    if shard.ranges is not None and values.dim():
        raise CheckpointError(
            f"the optimizer keeps {name.rpartition('.')[2]} of shape {tuple(values.shape)} for {name}, which is split "
            "across ranks: such state cannot be saved in parts. Use an optimizer whose state has the parameter's shape,"
            " like Adam"
        )
    return values.detach()


def copied(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU, which the next update does not change."""
    if isinstance(tensor, SplitTensor):
        return SplitTensor.of(tensor.shape, tensor.dtype, {at: copied(piece) for at, piece in tensor.pieces.items()})
    return tensor.detach().to("cpu", copy=True)


def tensors_of(strategy: Strategy) -> NamedTensors:
    """Return everything that this rank has, most of it the strategy's own memory, by the whole model's names.

    A rank's own tensors have names like `rank-0.random.cpu`; a parameter whose copies may differ, `copy-1.model....`.
    """
    rank = rank_and_ranks()[0]
    tensors: NamedTensors = {}
    for name, shard in strategy.shards().items():
        copy_of = f"copy-{shard.copy}." if shard.copy else ""
        tensors[f"{copy_of}model.{name}"] = _split(name, shard, shard.tensor)
        for slot, value in strategy.optimizer.state.get(shard.tensor, {}).items():
            if value is not None:  # the momentum of SGD without any is None
                key = f"{copy_of}optimizer.{name}.{slot}"
                tensors[key] = _split(key, shard, torch.as_tensor(value))
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


def slots_of(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return what the optimizer keeps for a parameter: it shows when a copy of it trains a small matrix and vector."""
    trial = copy.copy(optimizer)
    vars(trial).update({**vars(optimizer), **vars(trial)}, state=defaultdict(dict), param_groups=[])
    for group in optimizer.param_groups:
        weight = group["params"][0] if group["params"] else torch.zeros(1)
        small = [torch.zeros(shape, dtype=weight.dtype, device=weight.device) for shape in ((2, 2), (2,))]
        for tensor in small:
            tensor.grad = torch.zeros_like(tensor)
        trial.param_groups.append({**group, "params": small})
    type(optimizer).step(trial)  # not `trial.step`, which a learning rate scheduler may have bound to the optimizer
    slots = {slot: value for state in trial.state.values() for slot, value in state.items()}
    return {slot: torch.as_tensor(value) for slot, value in sorted(slots.items()) if value is not None}


def description_of(strategy: Strategy, *, sampled: bool) -> dict[str, Any]:
    """Return how a strategy splits its model, and what it trains. Refuses parts that are not the whole model.

    All ranks must call this. `sampled` also compares the values of parts that several ranks have.
    """
    parts = gather_outlines(strategy.checked_shards(), sampled=sampled)
    check_outlines(parts)
    boxes = [{name: [each.copy, list(map(str, each.boxes))] for name, each in part.items()} for part in parts]
    layout = {"strategy": type(strategy).__name__, "ranks": len(parts), "micro_batches": strategy.micro_batches}
    outlines = {name: outline for part in parts for name, outline in part.items()}
    return {
        "layout": {**layout, "parts": boxes},
        "parameters": {name: [list(outline.shape), outline.dtype] for name, outline in sorted(outlines.items())},
        "optimizer": f"{type(strategy.optimizer).__name__} ({', '.join(slots_of(strategy.optimizer))})",
    }


def in_words(layout: Mapping[str, Any]) -> str:
    """Return the layout in words: `Pipeline on 4 ranks in 2 micro-batches`."""
    pieces = f" in {layout['micro_batches']} micro-batches" if layout["micro_batches"] > 1 else ""
    return f"{layout['strategy']} on {counted(layout['ranks'], 'rank')}{pieces}"


def targets_of(
    strategy: Strategy, checkpoint: Checkpoint, saved: Mapping[str, Any]
) -> tuple[NamedTensors, dict[Tensor, NamedTensors]]:
    """Return the tensors to load into, by their saved names, and what the optimizer then keeps for each parameter.

    Where it keeps nothing yet, these are new tensors. `saved` describes each tensor of the checkpoint.
    """
    rank, kept = rank_and_ranks()[0], slots_of(strategy.optimizer)
    targets: NamedTensors = {}
    slots: dict[Tensor, NamedTensors] = {}
    for name, shard in strategy.shards().items():
        copy_of = f"copy-{shard.copy}." if shard.copy and checkpoint.same_layout else ""  # else the first copy
        targets[f"{copy_of}model.{name}"] = _split(name, shard, shard.tensor)
        before, slots[shard.tensor] = strategy.optimizer.state.get(shard.tensor, {}), {}
        for slot, small in kept.items():
            key = f"{copy_of}optimizer.{name}.{slot}"
            if key not in saved:  # the parameter had not had a gradient yet
                continue
            value, size, dtype = before.get(slot), saved[key].size, saved[key].properties.dtype
            if not isinstance(value, Tensor):
                has_its_shape = small.dim() and size == torch.Size(shard.shape)
                empty = torch.zeros_like(shard.tensor) if has_its_shape else torch.zeros(size, device=small.device)
                value = empty.to(dtype)
            slots[shard.tensor][slot] = value
            targets[key] = _split(key, shard, value)
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
    for key, entry in saved.items() if checkpoint.same_layout else ():
        if key.startswith((f"rank-{rank}.random.", f"rank-{rank}.state.")):
            targets[key] = torch.empty(entry.size, dtype=entry.properties.dtype)
    return targets, slots


def check_same(checkpoint: Checkpoint, parameters: Mapping[str, list], optimizer: str) -> None:
    """Refuse a checkpoint whose parameters have other names, shapes or dtypes, or whose optimizer keeps other state."""

    def described(name: str, outline: list | None) -> str:
        return f"{name} of shape {tuple(outline[0])} in {outline[1][6:]}" if outline else f"no {name}"

    for name in sorted(checkpoint.parameters.keys() | parameters.keys()):
        saved, current = checkpoint.parameters.get(name), parameters.get(name)
        if saved != current:
            raise CheckpointError(
                f"{checkpoint.path} belongs to another model: it has {described(name, saved)}, and this one has "
                f"{described(name, current)}. Give the model, sizes and dtype that it was trained with"
            )
    # Version 1.0 saved the optimizer's name alone.
    if checkpoint.optimizer and checkpoint.optimizer not in (optimizer, optimizer.partition(" (")[0]):
        raise CheckpointError(
            f"{checkpoint.path} was saved with {checkpoint.optimizer}, and this run has {optimizer}, which keeps "
            "different state: continue with the same optimizer, with the same options"
        )


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
