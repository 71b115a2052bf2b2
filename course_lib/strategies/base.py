"""One skeleton for every way to train. A strategy says only what is particular to it.

`SingleDevice` is the reference that every other strategy is compared with: one device, one process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from course_lib.data import Batch
from course_lib.lstm.model import Loss, SequenceModel, States, detach_states
from course_lib.machine import device
from course_lib.strategies.precision import GradientScaler, in_float32
from course_lib.strategies.probe import KNOWN, Block, check_cuts
from course_lib.strategies.shards import NamedTensors, Offsets, Shard, check_has_all, gather_outlines, join, local_part
from course_lib.trace import span

MakeOptimizer = Callable[[Iterable[Parameter]], Optimizer]
StatesByMicroBatch = dict[int, States]


class Strategy:
    """Owns a model, or this rank's part of it, its optimizer, and the states that are carried from batch to batch.

    `step` is the same for all. A strategy of your own overrides what differs: `share` (who gets which sequences),
    `sum_counts`, `reduce_gradients`, or the whole of `forward_backward`; and, where a rank has only some rows of a
    parameter, `shards`. It can then be compared with one process, saved, resumed and loaded as any other.

    With `carry_state`, a batch begins in the state in which the previous one ended (and the gradient stops there):
    for streams of text. With `clip`, the gradient of the whole model is scaled down to that norm. With `autocast`, the
    forward pass computes in that dtype, `torch.bfloat16` or `torch.float16`, and the loss in float32.
    """

    micro_batches = 1  # of a share
    chunks = 1  # of time, of a micro-batch
    shares = 1  # of a batch, over the ranks
    share_number = 0  # which of them is this rank's
    gradient_scale = 1  # the number of ranks where gradients, or weights, are *averaged* over them afterwards
    applies_precision = False  # whether the forward pass has been seen to compute in the precision that was asked for
    model_group: dist.ProcessGroup | None = None  # the ranks that have one model together; None: each has all of it

    def __init__(
        self,
        model: SequenceModel,
        optimizer: MakeOptimizer,
        loss: Loss,
        *,
        carry_state: bool = False,
        clip: float | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.device = device()
        self.rank, self.ranks = rank_and_ranks()
        self.random_stream = self.rank  # ranks that draw the same random numbers have the same one
        self.untried = blocks_of(model)
        self.model = model.to(self.device)
        self.optimizer = optimizer(self.model.parameters())
        self.loss, self.carry_state, self.clip = in_float32(loss) if autocast else loss, carry_state, clip
        self.autocast, self.scaler = autocast, GradientScaler() if autocast is torch.float16 else None
        self.states: StatesByMicroBatch = {}
        self.updates = 0

    def share(self, batch: Batch) -> Batch:
        """What this rank feeds to `step`, of a batch that is meant for all ranks together."""
        return batch

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """One update for the global batch, of which `batch` is this rank's share.

        Returns the loss per counted step of the global batch, and how many steps counted; both on the device.
        """
        batch = batch.to(self.device, non_blocking=True)
        self.check_cuts(batch)
        self.optimizer.zero_grad()
        total, count, states = self.forward_backward(batch)
        if self.autocast and not self.applies_precision:
            raise ValueError(
                f"{type(self).__name__}.forward_backward computes in float32, not in {self.autocast}: run its forward "
                "pass and its loss inside `with self.precision():`"
            )
        self.reduce_gradients()
        with span("update"):
            if self.unscale_gradients():
                self.clip_gradients()
                self.optimizer.step()
        self.states = {m: detach_states(own) for m, own in states.items()} if self.carry_state else {}
        self.updates += 1
        return total / nonzero(count), count

    def check_cuts(self, batch: Batch) -> None:
        """Refuse, before the first update, a model whose gradients would change with the pieces of a batch."""
        if self.untried:
            pieces = self.shares * self.micro_batches
            check_cuts(self.untried, batch.inputs, chunks=self.chunks, pieces=pieces, quiet=self.share_number > 0)
            self.untried = []

    def forward_backward(self, batch: Batch) -> tuple[Tensor, Tensor, StatesByMicroBatch]:
        """Add the gradient of this rank's sum of losses, divided by the *global* count, to the parameters' gradients.

        It is multiplied by `gradient_scale`, where that is not 1. Returns the global batch's sum of losses and count,
        and the states in which this rank's sequences ended, by micro-batch.
        """
        with span("forward"), self.precision():
            outputs, states = self.forward(batch.inputs, self.states.get(0))
            total, count = self.loss(outputs, batch)
        global_total, global_count = self.sum_counts(total.detach(), count)
        with span("backward"):
            self.backward(total, global_count)
        return global_total, global_count, {0: states}

    def backward(self, total: Tensor, global_count: Tensor) -> None:
        """The backward pass of a sum of losses, divided by the global count. Where nothing counts, nothing moves."""
        scaled = total if self.gradient_scale == 1 or self.scaler else total * self.gradient_scale
        (scaled / self.divisor(global_count)).backward()

    def divisor(self, global_count: Tensor) -> Tensor:
        """What a sum of losses is divided by before its backward pass: by less, where gradients are scaled up."""
        count = nonzero(global_count)
        return count if self.scaler is None else count / self.scaler.scale

    def sum_counts(self, total: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of losses and the count of the global batch, from those of this rank's share."""
        return total, count

    def reduce_gradients(self) -> None:
        """Sum the gradients over the ranks that have the same parameters, if the backward pass has not."""

    def unscale_gradients(self) -> bool:
        """Divide float16's gradients by what the loss was multiplied by. False, on all ranks, if they overflowed."""
        if self.scaler is None:
            return True
        gradients = (parameter.grad for parameter in self.model.parameters())
        own = [local_part(gradient) for gradient in gradients if gradient is not None]
        return self.scaler.unscale(own, self.gradient_scale, self.device)

    def clip_gradients(self) -> None:
        """Scale the gradient down to a norm of at most `clip`: the norm of the *whole* model's gradient."""
        if self.clip is None:
            return
        if self.model_group is None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            return
        elsewhere = self._counted_elsewhere  # found out by all ranks together, also by those without gradients
        some = next(self.model.parameters())
        squares = torch.zeros((), dtype=some.dtype, device=some.device)
        for name, shard in self.shards().items():
            if shard.tensor.grad is not None:  # on a rank whose blocks are all frozen, there is none
                for offsets, piece in shard.pieces(of=shard.tensor.grad):
                    if (name, offsets) not in elsewhere:
                        squares += piece.square().sum()
        dist.all_reduce(squares, group=self.model_group)
        torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), self.clip, squares.sqrt())

    def shards(self) -> dict[str, Shard]:
        """What this rank has of each parameter of the whole model, by its name there."""
        return {name: Shard.whole(parameter) for name, parameter in self.model.named_parameters()}

    def full_state(self) -> NamedTensors:
        """The whole model's parameters by name, on the CPU, whatever the split; for all ranks to call."""
        if self.model_group is not None:
            return join(self.shards(), self.model_group)
        return {name: shard.tensor.detach().cpu().clone() for name, shard in self.shards().items()}

    def full_gradients(self) -> NamedTensors:
        """The gradients of the last step, the same way. A parameter that is not trained has none."""
        if self.model_group is not None:
            return join(self.shards(), self.model_group, gradients=True)
        gradients = {name: shard.tensor.grad for name, shard in self.shards().items()}
        return {name: gradient.cpu().clone() for name, gradient in gradients.items() if gradient is not None}

    def forward(self, inputs: Tensor, states: States | None) -> tuple[Tensor, States]:
        """The forward pass: outputs, and the states in which the sequences ended."""
        return self.model(inputs, states)

    def checked_loss(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, for those who took its count from the masks, beforehand. The first update sees if the two agree."""
        total, count = self.loss(outputs, batch)
        if self.updates == 0 and float(count) != float(batch.mask.sum()):
            raise ValueError(
                f"the loss counts {float(count):g} steps where the mask has {int(batch.mask.sum())}: "
                f"{type(self).__name__} divides by the count before it knows the loss, so the two must agree. Put what "
                "counts into the mask"
            )
        return total, count

    def precision(self) -> contextlib.AbstractContextManager:
        """The context in which the forward pass and the loss are computed."""
        self.applies_precision = True
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)

    def checked_shards(self) -> dict[str, Shard]:
        """`shards()`, seen to be all that this rank has."""
        shards = self.shards()
        check_has_all(shards, dict(self.model.named_parameters()), self.model_group)
        return shards

    @cached_property
    def _counted_elsewhere(self) -> set[tuple[str, Offsets]]:
        """The pieces that another rank counts into the norm: of a piece that several ranks have, the first one does."""
        everyone, here = gather_outlines(self.checked_shards(), self.model_group), dist.get_rank(self.model_group)
        first = [(name, outline.boxes) for part in everyone[:here] for name, outline in part.items()]
        return {(name, box.offsets) for name, boxes in first for box in boxes}


def blocks_of(model: SequenceModel, part: SequenceModel | None = None) -> list[Block]:
    """The blocks of a whole model, or of a part of it, that nobody has tried yet: those that are not the course's."""
    numbered, own = model.numbered(), {place for place, _ in (part or model).numbered()}
    widths = [None, *(block.width for _, block in numbered)]
    blocks = [Block(place, block, width) for (place, block), width in zip(numbered, widths, strict=False)]
    return [block for block in blocks if block.place in own and type(block.module) not in KNOWN]


def rank_and_ranks() -> tuple[int, int]:
    """This process's rank and how many there are: 0 of 1 where no process group is up."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def nonzero(count: Tensor) -> Tensor:
    """The count, or 1 where nothing counts: a sum of nothing, divided by it, is 0. Weights may count less than 1."""
    return count + (count == 0)


def broadcast_weights(model: Module) -> None:
    """Give every rank rank 0's weights: each made its model from a seed of its own."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)


def sum_over_ranks(tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """The sum of every rank's tensor, on every rank."""
    with span("communication"):
        dist.all_reduce(tensor, group=group)
    return tensor


class Single(Strategy):
    """Forward, backward, update."""
