"""One rank of a pipeline: its blocks, in one or more parts of the model, and how it reaches the other ranks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.data import Batch
from course_lib.lstm.model import Loss, SequenceModel
from course_lib.machine import device
from course_lib.planning.actions import Action, Layout
from course_lib.planning.placement import Placement, check_placement
from course_lib.planning.schedule import Schedule
from course_lib.planning.simulation import ActionCosts
from course_lib.strategies.point_to_point import PendingReceive, PendingSend, connect, receive, send
from course_lib.strategies.split_backward import Finish

TAGS = {"F": 1, "B": 2}  # keep activations and gradients between two ranks apart
TIME_TAGS = {"F": 3, "B": 4}  # the send time, for paced links
Channel = tuple[str, bool]  # activations (F) or gradients (B), and whether the sending stage has an odd number


@dataclass(frozen=True)
class VirtualStage:
    """One part of the model on a rank, which may have several."""

    part: SequenceModel
    position: int  # among all parts of the model
    positions: int
    width: int  # of its inputs: numbers per step and sequence

    @property
    def is_first(self) -> bool:
        return self.position == 0

    @property
    def is_last(self) -> bool:
        return self.position == self.positions - 1

    @cached_property
    def blocks(self) -> list[SequenceModel]:
        """The same part, split into one model per block."""
        return [self.part.part(index, index + 1) for index, _ in self.part.numbered()]

    @cached_property
    def width_out(self) -> int:
        return self.part.numbered()[-1][1].width


@dataclass(frozen=True)
class Stage:
    """One rank's blocks, and their positions in the pipeline."""

    part: SequenceModel  # all of the rank's blocks
    virtual: tuple[VirtualStage, ...]
    loss: Loss
    index: int
    ranks: tuple[int, ...]  # of all stages, in order
    pace: ActionCosts | None
    groups: Mapping[Channel, Any]  # a process group for each, or None
    autocast: torch.dtype | None = None

    @classmethod
    def of(
        cls,
        model: SequenceModel,
        placement: Placement,
        index: int,
        ranks: Iterable[int],
        loss: Loss,
        pace: ActionCosts | None = None,
        layout: Layout | None = None,
        autocast: torch.dtype | None = None,
    ) -> Stage:
        """Return the stage at `index` of the pipeline on `ranks`. Only its blocks move to the device.

        `placement` sets which blocks are at which position. If `layout` has virtual stages, there are more positions
        than ranks.
        """
        ranks = tuple(ranks)
        layout = layout or Layout(len(ranks))
        check_blocks(placement, model, layout)
        widths, virtual = [block.width for _, block in model.numbered()], []
        for number in range(layout.virtual):
            position = layout.position(index, number)
            start, stop = placement.parts[position]
            part = model.part(start, stop).to(device())
            virtual.append(VirtualStage(part, position, layout.positions, widths[start - 1] if start else 0))
        blocks = sorted(block for virtual_stage in virtual for block in virtual_stage.part.numbered())
        part = virtual[0].part if len(virtual) == 1 else SequenceModel(dict(blocks))
        return cls(part, tuple(virtual), loss, index, ranks, pace, _groups(ranks, layout), autocast)

    @property
    def dtype(self) -> torch.dtype:
        return next(self.part.parameters()).dtype

    @property
    def message_dtype(self) -> torch.dtype:
        return self.autocast or self.dtype

    def precision(self) -> contextlib.AbstractContextManager:
        """Return the context in which the forward pass and the loss run."""
        return torch.autocast(device().type, dtype=self.autocast) if self.autocast else contextlib.nullcontext()

    def seconds_for(self, action: Action, schedule: Schedule) -> float:
        """Return the minimum duration of an action."""
        return self.pace.of(action, self.index, schedule) if self.pace else 0.0

    @property
    def link_seconds(self) -> float:
        """The minimum time that a message takes."""
        return self.pace.link if self.pace else 0.0

    def finish(self, virtual: VirtualStage, piece: Batch) -> Finish:
        """Return what a part does with its outputs for this piece: send them on, or compute the loss."""
        if virtual.is_last:
            return lambda outputs: self.loss(outputs, piece)[0]
        return lambda outputs: outputs.to(self.message_dtype)

    def send(self, tensor: Tensor, kind: str, to: int) -> list[PendingSend]:
        """Start sending activations or gradients to the stage at `to`, along with the time if links are paced."""
        peer, group, sends = self.ranks[to], self.groups[kind, self.index % 2 == 1], []
        if self.link_seconds and tensor.numel():
            now = torch.tensor([time.monotonic()], dtype=torch.float64, device=tensor.device)
            sends.append(send(now, peer, TIME_TAGS[kind], group))
        return [*sends, send(tensor, peer, TAGS[kind], group)]

    def receive(self, piece: Batch, action: Action, source: int) -> PendingMessage:
        """Start receiving what `action` needs for this piece from the stage at `source`."""
        virtual, kind = self.virtual[action.virtual], action.kind
        shape = (piece.steps, piece.sequences, virtual.width if kind == "F" else virtual.width_out)
        peer, group, target = self.ranks[source], self.groups[kind, source % 2 == 1], piece.mask.device
        sent_at = None
        if self.link_seconds and piece.sequences:
            sent_at = receive((1,), torch.float64, target, peer, TIME_TAGS[kind], group)
        return PendingMessage(
            receive(shape, self.message_dtype, target, peer, TAGS[kind], group), sent_at, self.link_seconds
        )


@dataclass
class PendingMessage:
    """A message being received. Over a paced link, it arrives `link_seconds` after it was sent."""

    content: PendingReceive
    sent_at: PendingReceive | None  # by a clock that both ranks read: they must be on one machine
    link_seconds: float

    def wait(self) -> Tensor:
        sent_at = self.sent_at.wait().item() if self.sent_at else None
        content = self.content.wait()
        if sent_at is not None:
            time.sleep(max(0.0, sent_at + self.link_seconds - time.monotonic()))
        return content


def check_blocks(placement: Placement, model: SequenceModel, layout: Layout) -> None:
    """Refuse a placement that does not give each position of the pipeline consecutive blocks."""
    if layout.virtual > 1 and placement.stages != layout.positions:
        raise ValueError(
            f"a placement on {placement.stages} parts for {layout.stages} stages of {layout.virtual} virtual stages: "
            f"cut the model into {layout.positions} consecutive parts, numbered from 0 in the model's order"
        )
    check_placement(placement, model, layout.positions)


def _groups(ranks: tuple[int, ...], layout: Layout) -> dict[Channel, Any]:
    """Return a process group for each channel with NCCL, which has no tags; None with backends that have them.

    There are four channels, no matter how many stages there are. Messages in a channel keep their order, which is the
    same on all ranks, so a channel groups messages that rarely wait for each other: the messages that a stage sends
    don't queue behind those that it receives from its neighbors.
    """
    channels = [(kind, odd) for kind in TAGS for odd in (False, True)]
    if "cuda:nccl" not in dist.get_backend_config():
        return dict.fromkeys(channels)
    groups: dict[Channel, Any] = {channel: dist.new_group() for channel in channels}
    stages = [layout.stage_at(position)[0] for position in range(layout.positions)]
    forward = dict.fromkeys((a, b) for a, b in pairwise(stages) if a != b)
    pairs = {"F": forward, "B": [(b, a) for a, b in forward]}
    for (kind, odd), group in groups.items():
        connect(((ranks[a], ranks[b]) for a, b in pairs[kind] if a % 2 == odd), group)
    return groups
