"""The same blocks in the pipelines of `torch.distributed.pipelining`, for whoever compares them with ours."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.microbatch import TensorChunkSpec
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from course_lib import trace
from course_lib.core.batch import Batch
from course_lib.core.model import SequenceModel
from course_lib.pipeline.simulation import ActionCosts
from course_lib.pipeline.stage import Stage


class OutputsOnly(nn.Module):
    """A part of the model for batches that are not cut over time: no state comes in, and none is wanted."""

    def __init__(self, part: SequenceModel) -> None:
        super().__init__()
        self.part = part

    def forward(self, values: Tensor) -> Tensor:
        return self.part(values)[0]


class PacedStage(PipelineStage):
    """A stage of theirs whose actions take at least as long as ours do."""

    pace: ActionCosts | None = None

    def forward_one_chunk(self, *given, **named):
        with trace.span("forward", at_least=self.pace.forward if self.pace else 0.0):
            return super().forward_one_chunk(*given, **named)

    def backward_one_chunk(self, *given, full_backward: bool = True, **named):
        seconds = self.pace.backward / (1 if full_backward else 2) if self.pace else 0.0
        with trace.span("backward", at_least=seconds):
            return super().backward_one_chunk(*given, full_backward=full_backward, **named)

    def backward_weight_one_chunk(self, *given, **named):
        with trace.span("weight gradients", at_least=self.pace.backward / 2 if self.pace else 0.0):
            return super().backward_weight_one_chunk(*given, **named)


def their_step(
    name: str, stage: Stage, batch: Batch, micro_batches: int, pace: ActionCosts | None = None
) -> Callable[[], None]:
    """What does one step of PyTorch's schedule of that name on this stage's blocks, for a loss of squared errors.

    Sequences stand in the second dimension: PyTorch cuts the inputs there, and the targets always in the first.
    """
    wanted = torch.stack([batch.targets, batch.mask.to(batch.targets)]).permute(2, 1, 0).contiguous()

    def loss(outputs: Tensor, wanted: Tensor) -> Tensor:
        return ((outputs.squeeze(-1).T - wanted[..., 0]) * wanted[..., 1]).square().sum() / batch.count

    stages = []
    for virtual in stage.virtual:
        made = PacedStage(OutputsOnly(virtual.part), virtual.position, virtual.positions, torch.device("cpu"))
        made.pace = pace
        stages.append(made)
    kind = get_schedule_class(name)
    given = stages if issubclass(kind, PipelineScheduleMulti) else stages[0]
    schedule = kind(given, micro_batches, loss_fn=loss, scale_grads=False)
    schedule._args_chunk_spec = (TensorChunkSpec(1),)  # not all of them take it as an argument
    inputs = [batch.inputs] if any(virtual.is_first for virtual in stage.virtual) else []
    targets = {"target": wanted} if any(virtual.is_last for virtual in stage.virtual) else {}
    return lambda: schedule.step(*inputs, **targets)
