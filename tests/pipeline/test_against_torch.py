"""Ours and PyTorch's own pipelines, on the same blocks and in the same order of actions, give the same gradients."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.core.adding import AddingProblem
from course_lib.core.model import lstm_model, squared_error
from course_lib.core.strategy import Single
from course_lib.model_parallel.placement import equal_count
from course_lib.pipeline.named_schedules import from_torch
from course_lib.pipeline.pipeline import Execution
from course_lib.pipeline.stage import Stage

BATCH = AddingProblem(16, (5, 9)).batch(range(16))
MICRO_BATCHES = 8
FIVE = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


def three_gradients(name: str) -> list[dict[str, torch.Tensor]]:
    """This rank's gradients by PyTorch's pipeline, by ours, and by one process."""
    from tests.pipeline.torch_pipelines import their_step  # it imports a compiler: seconds

    torch.manual_seed(0)
    model = lstm_model(features=2, hidden=4, layers=6, outputs=1).double()
    batch = BATCH.__class__(BATCH.inputs.double(), BATCH.targets.double(), BATCH.lengths, BATCH.mask)
    ranks = dist.get_world_size()
    schedule = from_torch(name, ranks, MICRO_BATCHES)
    placement = equal_count(len(model), schedule.stage_map.positions)
    stage = Stage.of(model, placement, dist.get_rank(), range(ranks), squared_error, layout=schedule.stage_map)
    steps = [
        their_step(name, stage, batch, MICRO_BATCHES),
        lambda: Execution(stage, schedule, batch, batch.mask.sum(), {}).run(),
        lambda: Single(model, torch.optim.SGD, squared_error).forward_backward(batch),
    ]
    found = []
    for step in steps:
        model.zero_grad()
        step()
        found.append({name: weight.grad.clone() for name, weight in stage.part.named_parameters()})
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", FIVE)
def test_gradients_agree_with_those_of(name):
    for theirs, ours, alone in launch(three_gradients, name, ranks=4):
        for weight, gradient in ours.items():
            torch.testing.assert_close(gradient, alone[weight], rtol=0, atol=1e-10)
            torch.testing.assert_close(gradient, theirs[weight], rtol=0, atol=1e-10)
