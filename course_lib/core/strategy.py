"""The training step that all strategies share. A strategy overrides only the parts that differ.

`Single` is the reference that every other strategy is compared with: one device, one process.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from course_lib.core.batch import Batch
from course_lib.core.model import Loss, SequenceModel, States, detach_states
from course_lib.core.shards import NamedTensors, Offsets, Shard, check_shards, gather_outlines, join, local_part
from course_lib.runtime.machine import device
from course_lib.runtime.trace import span

MakeOptimizer = Callable[[Iterable[Parameter]], Optimizer]
StatesByMicroBatch = dict[int, States]  # by the number of the micro-batch; 0 if a share is not cut

PRECISIONS: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Strategy:
    """Owns a model (or this rank's part of it), its optimizer, and the states carried from batch to batch.

    `step` is the same for all. Your own strategy overrides the methods that differ: `share` (which sequences a rank
    gets), `sum_counts`, `reduce_gradients`, or all of `forward_backward`; and `shards`, if a rank has only some rows of
    a parameter. You can then compare it with one process, save it, resume it and load it like any other strategy.

    With `carry_state`, a batch starts from the state in which the previous one ended, and the gradient stops there: use
    it for streams of text. With `clip`, the gradient of the whole model is scaled down to at most this norm. With
    `autocast`, `torch.bfloat16` or `torch.float16`, the forward pass runs in this dtype, and the loss in float32.
    """

    shares = 1  # into which the ranks cut a global batch: ranks that share a model have the same one
    micro_batches = 1  # into which a share is cut
    chunks = 1  # of time, into which a micro-batch is cut
    gradient_scale = 1  # the number of ranks if gradients or weights are *averaged* afterwards
    mesh_in_words = ""  # how the ranks divide the work, for the summary of a run
    applies_precision = False  # whether the forward pass is known to run in the requested precision
    model_group: dist.ProcessGroup | None = None  # the ranks that share one model; None if each has all of it

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
        check_limits(model, carry_state=carry_state)
        self.device = device()
        self.rank, self.ranks = rank_and_ranks()
        self.random_stream = self.rank  # ranks with the same stream draw the same random numbers
        self.model = model.to(self.device)
        self.optimizer = optimizer(self.model.parameters())
        self.loss, self.carry_state, self.clip = loss, carry_state, clip
        if autocast:  # in half precision, a sum of many small losses would be wrong
            self.loss = lambda outputs, batch: loss(outputs.float(), batch)
            # A CPU without half-precision arithmetic still runs the model, but slowly, and PyTorch says so at length.
            warnings.filterwarnings("ignore", "mkldnn_.* failed, switching to BLAS", UserWarning)
        self.autocast, self.scaler = autocast, GradientScaler() if autocast is torch.float16 else None
        self.states: StatesByMicroBatch = {}
        self.updates = 0
        self.counted_elsewhere: set[tuple[str, Offsets]] | None = None  # pieces that an earlier rank adds to the norm

    def share(self, batch: Batch) -> Batch:
        """Return this rank's share of a global batch, to pass to `step`."""
        return batch

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Run one update on the global batch, of which `batch` is this rank's share.

        Returns the loss per counted step of the global batch, and the number of counted steps; both on the device.
        """
        batch = batch.to(self.device, non_blocking=True)
        self.optimizer.zero_grad()
        total, count, states = self.forward_backward(batch)
        if self.autocast and not self.applies_precision:
            raise ValueError(
                f"{type(self).__name__}.forward_backward computes in float32, not in {self.autocast}: run its forward "
                "pass and its loss inside `with self.precision():`"
            )
        self.reduce_gradients()
        with span("update"):
            if self.scaler is None or self.scaler.unscale(self.model.parameters(), self.gradient_scale, self.device):
                self.clip_gradients()
                self.optimizer.step()
        self.states = {m: detach_states(its_states) for m, its_states in states.items()} if self.carry_state else {}
        self.updates += 1
        return total / nonzero(count), count

    def forward_backward(self, batch: Batch) -> tuple[Tensor, Tensor, StatesByMicroBatch]:
        """Add the gradient of this rank's summed loss, divided by the *global* count, to the parameters' gradients.

        The gradient is multiplied by `gradient_scale`. Returns the summed loss and the count of the global batch, and
        the final states of this rank's sequences, by micro-batch.
        """
        with span("forward"), self.precision():
            outputs, states = self.forward(batch.inputs, self.states.get(0))
            total, count = self.loss(outputs, batch)
        global_total, global_count = self.sum_counts(total.detach(), count)
        with span("backward"):
            self.backward(total, global_count)
        return global_total, global_count, {0: states}

    def forward(self, inputs: Tensor, states: States | None) -> tuple[Tensor, States]:
        """Run the forward pass. Returns the outputs and the final states of the sequences."""
        return self.model(inputs, states)

    def precision(self) -> contextlib.AbstractContextManager:
        """Return the context in which the forward pass and the loss run."""
        self.applies_precision = True
        return torch.autocast(self.device.type, self.autocast) if self.autocast else contextlib.nullcontext()

    def backward(self, total: Tensor, global_count: Tensor) -> None:
        """Run the backward pass of a summed loss over the global count. If no step counts, the gradient is zero."""
        scaled = total if self.gradient_scale == 1 or self.scaler else total * self.gradient_scale
        (scaled / self.divisor(global_count)).backward()

    def divisor(self, global_count: Tensor) -> Tensor:
        """Return the number that divides a summed loss before its backward pass: smaller if gradients are scaled up."""
        count = nonzero(global_count)
        return count if self.scaler is None else count / self.scaler.scale

    def sum_counts(self, total: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss and the count of the global batch, from the values for this rank's share."""
        return total, count

    def reduce_gradients(self) -> None:
        """Sum the gradients over the ranks that have the same parameters, unless the backward pass already did."""

    def clip_gradients(self) -> None:
        """Scale the gradient down to a norm of at most `clip`, measured over the *whole* model's gradient."""
        if self.clip is None:
            return
        if self.model_group is None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            return
        if self.counted_elsewhere is None:  # not in __init__, where a strategy of your own has not set its group yet
            outlines = gather_outlines(self.checked_shards(), self.model_group)[: dist.get_rank(self.model_group)]
            earlier = [(name, box) for part in outlines for name, outline in part.items() for box in outline.boxes]
            self.counted_elsewhere = {(name, tuple(span.start for span in box)) for name, box in earlier}
        weight = next(self.model.parameters())
        squares = torch.zeros((), dtype=weight.dtype, device=weight.device)
        for name, shard in self.shards().items():
            if shard.tensor.grad is not None:  # a rank whose blocks are all frozen has no gradients
                for offsets, piece in shard.pieces(values=shard.tensor.grad):
                    if (name, offsets) not in self.counted_elsewhere:
                        squares += piece.square().sum()
        dist.all_reduce(squares, group=self.model_group)
        torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), self.clip, squares.sqrt())

    def shards(self) -> dict[str, Shard]:
        """Return this rank's shard of each parameter, by the parameter's name in the whole model."""
        return {name: Shard.whole(parameter) for name, parameter in self.model.named_parameters()}

    def checked_shards(self) -> dict[str, Shard]:
        """Return `shards()` after checking that they cover everything this rank has."""
        shards = self.shards()
        check_shards(shards, dict(self.model.named_parameters()), self.model_group)
        return shards

    def full_state(self) -> NamedTensors:
        """Return the whole model's parameters by name, on the CPU, even if it is split. All ranks must call this."""
        return join(self.shards(), self.model_group)

    def full_gradients(self) -> NamedTensors:
        """Return the whole model's gradients from the last step, like `full_state`. Frozen parameters have none."""
        return join(self.shards(), self.model_group, gradients=True)

    def checked_loss(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss and its count; the first update checks the count against the mask, which is known earlier."""
        total, count = self.loss(outputs, batch)
        if self.updates == 0 and float(count) != float(batch.mask.sum()):
            raise ValueError(
                f"the loss counts {float(count):g} steps where the mask has {int(batch.mask.sum())}: "
                f"{type(self).__name__} divides by the count before it knows the loss, so the two must agree. Mark the "
                "counted steps in the mask"
            )
        return total, count


class Single(Strategy):
    """One device, one process: forward, backward, update."""


def check_is_strategy(candidate: Any) -> None:
    """Refuse a class, or an object, that cannot be trained, compared and saved as a strategy."""
    kind = candidate if isinstance(candidate, type) else type(candidate)
    for name in ("share", "step", "shards", "checked_shards"):
        if not callable(getattr(kind, name, None)):
            raise ValueError(
                f"{kind.__name__} has no {name}(): derive it from course_lib.core.strategy.Strategy, which has one"
            )


def check_limits(model: SequenceModel, *, chunks: int = 1, carry_state: bool = False) -> None:
    """Let blocks refuse what they cannot do: to run in `chunks` of time, or to carry a state to the next batch."""
    for place, block in model.numbered():
        if hasattr(block, "check_limits"):
            block.check_limits(place, chunks=chunks, carry_state=carry_state)


def rank_and_ranks() -> tuple[int, int]:
    """Return this process's rank and the world size: 0 and 1 if there is no process group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def on_rank_0(act: Callable[[], Any], group: dist.ProcessGroup | None = None) -> Any:
    """Return on every rank what `act` returns on rank 0. If it raises an OSError or ValueError, every rank raises it.

    Ranks on several machines may see a shared folder in different states, so one rank looks for all of them.
    """
    answer: list[Any] = [None, None]
    if rank_and_ranks()[0] == 0:
        try:
            answer = [act(), None]
        except (OSError, ValueError) as error:
            answer = [None, error]
    if dist.is_initialized():
        dist.broadcast_object_list(answer, group=group)
    if answer[1] is not None:
        raise answer[1]
    return answer[0]


def nonzero(count: Tensor) -> Tensor:
    """Return the count, or 1 if it is 0, so that an empty sum divides to 0. Weighted counts may be less than 1."""
    return count + (count == 0)


def broadcast_weights(model: Module) -> None:
    """Copy rank 0's weights to every rank, because each rank built its model from a different seed."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)


def sum_over_ranks(tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return the sum of every rank's tensor, on every rank."""
    with span("communication"):
        dist.all_reduce(tensor, group=group)
    return tensor


FIRST_SCALE, GROWTH_INTERVAL = 2.0**16, 2000  # the defaults of `torch.amp.GradScaler`


@dataclass
class GradientScaler:
    """Keeps small gradients from vanishing in float16: multiplies the loss by `scale`, and divides the gradients by it.

    If gradients overflow, the update is skipped and the scale is halved; after GROWTH_INTERVAL updates without an
    overflow it is doubled. `torch.amp.GradScaler` does the same, but checks only one rank's gradients. When each rank
    has only a part of the model, all ranks must still skip the same updates.
    """

    scale: float = FIRST_SCALE
    updates_since_overflow: int = 0

    def unscale(self, parameters: Iterable[Parameter], gradient_scale: int, device: torch.device) -> bool:
        """Divide this rank's gradients by the scale, and return whether the gradients of all ranks are finite.

        They are also multiplied by `gradient_scale` here: before the backward pass, this would happen in float16.
        """
        finite = torch.ones((), dtype=torch.uint8, device=device)
        for parameter in parameters:
            if parameter.grad is not None:
                gradient = local_part(parameter.grad).mul_(gradient_scale / self.scale)
                finite *= gradient.isfinite().all()
        if dist.is_initialized():
            dist.all_reduce(finite, op=dist.ReduceOp.MIN)
        self.updates_since_overflow = self.updates_since_overflow + 1 if finite else 0
        if not finite:
            self.scale /= 2
        elif self.updates_since_overflow == GROWTH_INTERVAL:
            self.scale, self.updates_since_overflow = self.scale * 2, 0
        return bool(finite)

    def state(self) -> dict[str, float]:
        """Return the state that a checkpoint saves, for `load`."""
        return asdict(self)

    def load(self, state: Mapping[str, float]) -> None:
        """Continue from a saved state."""
        self.scale, self.updates_since_overflow = float(state["scale"]), int(state["updates_since_overflow"])
