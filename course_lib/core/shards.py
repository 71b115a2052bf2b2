"""Which part of the whole model a rank has: a strategy declares it; the proof, clipping and checkpoints use it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.runtime import private_doors

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

NamedTensors = dict[str, Tensor]
Offsets = tuple[int, ...]
SAMPLED = 16  # values of a piece that replicas compare


class BadShards(ValueError):
    """The ranks' shards don't add up to a whole model. The message says which rank's shard is wrong."""


@dataclass(frozen=True)
class Shard:
    """This rank's part of one parameter of the whole model: all of it, or some ranges along one dimension.

    `ranges` are indices into the whole, and `tensor` (for a `DTensor`, its local part) holds them one after another: a
    rank with units 2 and 3 of an LSTM layer of 8 units has rows 2-3, 10-11, 18-19 and 26-27 of its matrices, some of
    each gate.

    Several ranks may have the same part, with the same values. If the values may differ for a while, each rank sets a
    different `copy`; copy 0 counts as the model.
    """

    tensor: Tensor
    shape: tuple[int, ...]  # of the whole parameter
    ranges: tuple[range, ...] | None = None  # None: all of it
    dim: int = 0
    copy: int = 0

    @classmethod
    def whole(cls, tensor: Tensor) -> Shard:
        """Return a shard that is the whole parameter."""
        return cls(tensor, tuple(tensor.shape))

    def pieces(self, values: Tensor | None = None) -> list[tuple[Offsets, Tensor]]:
        """Return (offsets in the whole, piece) for each range of the shard's tensor, or of one with the same layout.

        Pieces are detached: autograd remembers a weight's shape as long as there is a view of it, and a sharded model's
        weights change their shapes.
        """
        tensor = local_part(self.tensor if values is None else values).detach()
        if self.ranges is None:
            return [((0,) * len(self.shape), tensor)]
        parts = tensor.split([len(rows) for rows in self.ranges], dim=self.dim)
        return [
            (tuple(rows.start if dim == self.dim else 0 for dim in range(len(self.shape))), part)
            for rows, part in zip(self.ranges, parts, strict=True)
        ]


def check_shards(shards: Any, parameters: Mapping[str, Tensor], model_group: Any) -> None:
    """Refuse shards that are not exactly the parameters of this rank's model."""
    if not isinstance(shards, Mapping) or not all(isinstance(shard, Shard) for shard in shards.values()):
        raise BadShards("shards() must return a dict with a Shard for each parameter of this rank's model")
    present, listed = set(map(id, parameters.values())), {id(shard.tensor) for shard in shards.values()}
    wrong = [name for name, shard in shards.items() if id(shard.tensor) not in present or not _fits(shard)]
    wrong += [name for name, parameter in parameters.items() if id(parameter) not in listed]
    if wrong:
        raise BadShards(
            f"shards() does not describe {wrong[0]} as it is on this rank: give a Shard for each parameter of its model"
            ", with the parameter itself, the whole one's shape, and a tuple of ranges if only a part of it is here"
        )
    several = dist.is_initialized() and dist.get_world_size() > 1
    if several and model_group is None and (cut := [name for name, shard in shards.items() if shard.ranges]):
        raise BadShards(
            f"{cut[0]} is cut, but model_group is None: set self.model_group to the ranks that have the model together,"
            " for example dist.group.WORLD"
        )


def _fits(shard: Shard) -> bool:
    """Return whether the shard's ranges are possible, and as long as its tensor."""
    shape, ranges = list(shard.shape), shard.ranges
    if ranges is not None:
        if not isinstance(ranges, tuple) or shard.dim not in range(len(shape)):
            return False
        if any(rows.step != 1 or not 0 <= rows.start <= rows.stop <= shape[shard.dim] for rows in ranges):
            return False
        shape[shard.dim] = sum(map(len, ranges))
    return list(local_part(shard.tensor).shape) == shape


Box = tuple[range, ...]  # where a piece lies in the whole parameter: a range along each dimension


@dataclass(frozen=True)
class Outline:
    """A shard without its values, except for a few samples of each piece: enough for other ranks to check it."""

    shape: tuple[int, ...]
    dtype: str
    boxes: tuple[Box, ...]
    copy: int
    samples: tuple[Tensor, ...] = ()  # for each box, if requested


Outlines = dict[str, Outline]  # one rank's outlines, by the parameter's name in the whole model


def _box(offsets: Offsets, sizes: Sequence[int]) -> Box:
    return tuple(range(start, start + size) for start, size in zip(offsets, sizes, strict=True))


def gather_outlines(
    shards: Mapping[str, Shard], group: dist.ProcessGroup | None = None, *, sampled: bool = False
) -> list[Outlines]:
    """Return the outlines of each rank in the group, `sampled` with a few values spread over each piece.

    All ranks in the group must call this.
    """
    outlines = {}
    for name, shard in shards.items():
        pieces = [(offsets, piece) for offsets, piece in shard.pieces() if piece.numel()]
        boxes = tuple(_box(offsets, piece.shape) for offsets, piece in pieces)
        samples = []
        for _, piece in pieces if sampled else []:
            places = [(piece.numel() - 1) * number // (SAMPLED - 1) for number in range(SAMPLED)]
            samples.append(piece.reshape(-1)[places].cpu())
        outlines[name] = Outline(tuple(shard.shape), str(shard.tensor.dtype), boxes, shard.copy, tuple(samples))
    return _all_gather_objects(outlines, group) if dist.is_initialized() else [outlines]


def _all_gather_objects(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Return every rank's value, in the order of the group's ranks."""
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, value, group)
    return gathered


def check_outlines(ranks: Sequence[Outlines]) -> None:
    """Refuse shards that are not the whole model: they overlap or leave a hole, or replicas have different values.

    Values are compared only if the outlines have samples.
    """
    for name in dict.fromkeys(name for outlines in ranks for name in outlines):
        holders = [(rank, outlines[name]) for rank, outlines in enumerate(ranks) if name in outlines]
        first, outline = holders[0]
        boxes: dict[Box, tuple[int, Tensor | None]] = {}  # with the first rank that has it, and its values there
        for rank, other in holders:
            if (other.shape, other.dtype) != (outline.shape, outline.dtype):
                both = f"{outline.shape} in {outline.dtype} on rank {first}, {other.shape} in {other.dtype} on {rank}"
                raise _bad_sum(name, f"is {both}")
            for number, box in enumerate(other.boxes if other.copy == 0 else ()):
                sample = other.samples[number] if other.samples else None
                owner, values = boxes.setdefault(box, (rank, sample))
                if sample is None or values is None:
                    continue
                if not torch.allclose(values, sample, rtol=1e-2, atol=1e-6, equal_nan=True):
                    raise _bad_sum(name, f"has different values in {_in_words(box)} on ranks {owner} and {rank}")
        for (box, (rank, _)), (other_box, (other_rank, _)) in combinations(boxes.items(), 2):
            if all(max(a.start, b.start) < min(a.stop, b.stop) for a, b in zip(box, other_box, strict=True)):
                both = f"{_in_words(box)} on rank {rank} and {_in_words(other_box)} on rank {other_rank}"
                raise _bad_sum(name, f"overlaps: {both}")
        numbers, found = math.prod(outline.shape), sum(math.prod(map(len, box)) for box in boxes)
        if found != numbers:
            raise _bad_sum(name, f"is incomplete: the ranks have {found} of its {numbers} numbers")


def _in_words(box: Box) -> str:
    return f"[{', '.join(f'{span.start}:{span.stop}' for span in box)}]"


def _bad_sum(name: str, problem: str) -> BadShards:
    return BadShards(
        f"{name} {problem}. The ranks' shards() must add up to the whole parameter: give the ranges that a rank has, "
        "or the same part on several ranks with the same values (or copy=rank, a copy number, if they may differ)"
    )


def join(shards: Mapping[str, Shard], group: dist.ProcessGroup | None, gradients: bool = False) -> NamedTensors:
    """Return the whole model's parameters, or their gradients, on the CPU, joined from the ranks of the group."""
    local = {
        name: (shard.shape, [(offsets, piece.cpu()) for offsets, piece in shard.pieces(values=values)])
        for name, shard in shards.items()
        if (values := shard.tensor.grad if gradients else shard.tensor.detach()) is not None
    }
    gathered = [] if group is None else _all_gather_objects(local, group)
    joined: NamedTensors = {}
    for part in [*gathered, local]:  # the local part comes last, so that a rank reports its copy of a replica
        for name, (shape, pieces) in part.items():
            for offsets, piece in pieces:
                target = joined.setdefault(name, torch.zeros(shape, dtype=piece.dtype))
                target[tuple(slice(span.start, span.stop) for span in _box(offsets, piece.shape))] = piece
    return joined


def shares(units: int, ranks: int) -> list[int]:
    """Return how many units each rank has, as equal as possible, for tensor parallelism: 8 on 5 ranks are 2 2 2 1 1."""
    share, extra = divmod(units, ranks)
    return [share + (rank < extra) for rank in range(ranks)]


def local_rows(rows: int, place: int, ranks: int) -> range:
    """Return the rows of a parameter on the rank at `place`: 8 on 5 ranks are 2 2 2 2 0, as in FSDP2 and `torch.chunk`.

    All ranks but the last ones have the same number, so that they can gather into one padded buffer without copies.
    """
    rows_per_rank = -(-rows // ranks)
    return range(min(rows, place * rows_per_rank), min(rows, (place + 1) * rows_per_rank))


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor on this rank. A `DTensor` has the shape of the whole; this returns its local rows."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Return whether a tensor is a `DTensor`. Importing that class takes a second, and plain tensors don't need it."""
    return hasattr(tensor, "to_local")


def all_gather(*arguments: Any, **options: Any) -> Any:
    """Call PyTorch's all-gather of one tensor, looked up at each call because a paced network replaces it."""
    return getattr(dist, private_doors.single_tensor_collectives()[0])(*arguments, **options)


def reduce_scatter(*arguments: Any, **options: Any) -> Any:
    """Call PyTorch's reduce-scatter of one tensor, looked up at each call like `all_gather`."""
    return getattr(dist, private_doors.single_tensor_collectives()[1])(*arguments, **options)
