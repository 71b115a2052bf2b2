"""Which part of the whole model a rank has. A strategy declares it, and comparing, saving and resuming rely on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

NamedTensors = dict[str, Tensor]
SAMPLED = 16
Offsets = tuple[int, ...]


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor on this rank. A `DTensor` has the shape of the whole; this returns its local rows."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Return whether a tensor is a `DTensor`. Importing that class takes a second, and plain tensors don't need it."""
    return hasattr(tensor, "to_local")


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
        starts = [rows.start for rows in self.ranges]
        return [
            (tuple(start if dim == self.dim else 0 for dim in range(len(self.shape))), part)
            for start, part in zip(starts, parts, strict=True)
        ]


@dataclass(frozen=True)
class Box:
    """The offsets and sizes of a piece of a parameter, without its values."""

    offsets: Offsets
    sizes: tuple[int, ...]

    @property
    def numbers(self) -> int:
        return math.prod(self.sizes)

    def overlaps(self, other: Box) -> bool:
        extents = zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
        return all(a < b + b_size and b < a + a_size for a, a_size, b, b_size in extents)

    def __str__(self) -> str:
        spans = [f"{start}:{start + size}" for start, size in zip(self.offsets, self.sizes, strict=True)]
        return f"[{', '.join(spans)}]"


@dataclass(frozen=True)
class Outline:
    """A shard without its values, except for a few samples of each piece: enough for other ranks to check it."""

    shape: tuple[int, ...]
    dtype: str
    boxes: tuple[Box, ...]
    copy: int
    samples: tuple[tuple[float, ...], ...] = field(default=(), compare=False)  # for each box, if requested


Outlines = dict[str, Outline]  # one rank's outlines, by the parameter's name in the whole model


def check_has_all(shards: Any, parameters: Mapping[str, Tensor], model_group: Any) -> None:
    """Refuse shards that are not exactly the parameters of this rank's model."""
    if not isinstance(shards, Mapping):
        raise BadShards(f"shards() returns a {type(shards).__name__}: return a dict with a Shard for each parameter")
    for name, shard in shards.items():
        if not isinstance(name, str):
            raise BadShards(f"shards() names a parameter {name!r}: give its name in the whole model, as text")
        _check_fits(name, shard)
    listed, present = {id(shard.tensor) for shard in shards.values()}, set(map(id, parameters.values()))
    for name, parameter in parameters.items():
        if id(parameter) not in listed:
            raise BadShards(f"shards() leaves out {name}, which this rank has: give a Shard for each of its parameters")
    for name, shard in shards.items():
        if id(shard.tensor) not in present:
            raise BadShards(f"the shard of {name} is not a parameter of this rank's model: give the parameter itself")
        if shard.ranges is not None and model_group is None and dist.is_initialized() and dist.get_world_size() > 1:
            raise BadShards(
                f"{name} is cut, but model_group is None: set self.model_group to the ranks that have the model "
                "together, for example dist.group.WORLD"
            )


def outlines_of(shards: Mapping[str, Shard], *, sampled: bool = False) -> Outlines:
    """Return the outlines of this rank's shards. Raises `BadShards` if a shard does not fit its tensor."""
    return {name: _outline(shard, sampled) for name, shard in shards.items()}


def _outline(shard: Shard, sampled: bool) -> Outline:
    pieces = [(offsets, piece) for offsets, piece in shard.pieces() if piece.numel()]
    return Outline(
        tuple(shard.shape),
        str(shard.tensor.dtype),
        tuple(Box(offsets, tuple(piece.shape)) for offsets, piece in pieces),
        shard.copy,
        tuple(_sample(piece) for _, piece in pieces) if sampled else (),
    )


def _sample(piece: Tensor) -> tuple[float, ...]:
    """Return a few values spread over a piece, to distinguish it from a different one."""
    places = [(piece.numel() - 1) * number // (SAMPLED - 1) for number in range(SAMPLED)]
    return tuple(piece.detach().reshape(-1)[places].tolist())


def _check_fits(name: str, shard: Any) -> None:
    if not isinstance(shard, Shard):
        raise BadShards(f"shards() gives a {type(shard).__name__} for {name}: give a Shard, for example Shard.whole(p)")
    local, shape = tuple(local_part(shard.tensor).shape), tuple(shard.shape)
    if shard.ranges is None:
        if local != shape:
            raise BadShards(f"shards() says that all {shape} of {name} is here, but the tensor is {local}: give ranges")
        return
    if not isinstance(shard.ranges, tuple) or not all(isinstance(span, range) for span in shard.ranges):
        raise BadShards(f"shards() gives ranges={shard.ranges!r} for {name}: give a tuple of ranges, (range(0, 4),)")
    if shard.dim not in range(len(shape)):
        raise BadShards(f"shards() cuts {name} along dimension {shard.dim}: give one from 0 to {len(shape) - 1}")
    length = shape[shard.dim]
    if any(span.step != 1 or not 0 <= span.start <= span.stop <= length for span in shard.ranges):
        raise BadShards(f"shards() gives {list(shard.ranges)} of {name}: give ranges from 0 to {length}, without steps")
    expected = tuple(sum(map(len, shard.ranges)) if d == shard.dim else size for d, size in enumerate(shape))
    if local != expected:
        raise BadShards(f"shards() says that {expected} of {name} is here, but the tensor is {local}")


def check_outlines(ranks: Sequence[Outlines]) -> None:
    """Refuse shards that don't add up to a whole model, because they overlap or leave a hole.

    If the outlines have samples, also refuse shards that claim to be the same part, but have different values.
    """
    for name in dict.fromkeys(name for outlines in ranks for name in outlines):
        holders = {rank: outlines[name] for rank, outlines in enumerate(ranks) if name in outlines}
        (first, outline), *others = holders.items()
        for rank, other in others:
            if (other.shape, other.dtype) != (outline.shape, outline.dtype):
                raise BadShards(
                    f"ranks {first} and {rank} disagree on {name}: {outline.shape} in {outline.dtype} on the one, "
                    f"and {other.shape} in {other.dtype} on the other"
                )
        boxes: dict[Box, int] = {}  # with the first rank that has it: the same box on several ranks is a replica
        for rank, other in holders.items():
            if other.copy == 0:
                for number, box in enumerate(other.boxes):
                    first = boxes.setdefault(box, rank)
                    if other.samples:
                        _check_replica(name, box, (first, holders[first]), (rank, other.samples[number]))
        for (box, rank), (other_box, other_rank) in combinations(boxes.items(), 2):
            if box.overlaps(other_box):
                raise BadShards(f"{name}: rank {other_rank}'s shard {other_box} overlaps rank {rank}'s {box}")
        _check_no_hole(name, outline.shape, list(boxes))


def _check_replica(name: str, box: Box, holder: tuple[int, Outline], replica: tuple[int, tuple[float, ...]]) -> None:
    (first_rank, outline), (rank, sample) = holder, replica
    expected = outline.samples[outline.boxes.index(box)]
    for a, b in zip(expected, sample, strict=True):
        if not math.isclose(a, b, rel_tol=1e-2, abs_tol=1e-6) and not (math.isnan(a) and math.isnan(b)):
            raise BadShards(
                f"ranks {first_rank} and {rank} both say that they have {name}{box}, but with different values "
                f"({a:.4g} and {b:.4g}): if each has different rows, shards() must give their ranges; if the "
                "ranks' weights may differ for a while, give each shard a copy number, copy=rank"
            )


def _check_no_hole(name: str, shape: tuple[int, ...], boxes: list[Box]) -> None:
    if sum(box.numbers for box in boxes) == math.prod(shape):
        return
    covered = torch.zeros(shape, dtype=torch.bool)
    for box in boxes:
        _at(covered, box.offsets, box.sizes).fill_(True)
    hole = tuple(int(index) for index in (~covered).nonzero()[0])
    raise BadShards(f"{name}: no rank has {list(hole)} of its {shape}; shards() must leave no hole")


def gather_outlines(
    shards: Mapping[str, Shard], group: dist.ProcessGroup | None = None, *, sampled: bool = False
) -> list[Outlines]:
    """Return the outlines of each rank in the group. All of them must call this."""
    outlines = outlines_of(shards, sampled=sampled)
    if not dist.is_initialized():
        return [outlines]
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, outlines, group)
    return gathered


def join(shards: Mapping[str, Shard], group: dist.ProcessGroup, gradients: bool = False) -> NamedTensors:
    """Return the whole model's parameters, or their gradients, joined from all ranks of the group; on the CPU."""
    local = {
        name: (shard.shape, [(offsets, piece.cpu()) for offsets, piece in shard.pieces(values=values)])
        for name, shard in shards.items()
        if (values := shard.tensor.grad if gradients else shard.tensor.detach()) is not None
    }
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, local, group)
    joined: NamedTensors = {}
    for part in [*gathered, local]:  # the local part comes last, so that a rank reports its copy of a replica
        for name, (shape, pieces) in part.items():
            for offsets, piece in pieces:
                target = joined.setdefault(name, torch.zeros(shape, dtype=piece.dtype))
                _at(target, offsets, piece.shape).copy_(piece)
    return joined


def _at(whole: Tensor, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Return a view of the piece of the whole that starts at `offsets`."""
    for dim, (start, size) in enumerate(zip(offsets, sizes, strict=True)):
        whole = whole.narrow(dim, start, size)
    return whole
