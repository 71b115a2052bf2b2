"""All of PyTorch's ways to talk give the right values, and no alarm."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from course_lib import launch
from tests.foreign.collectives import HARMLESS, Turn

pytestmark = pytest.mark.slow


def all_steps(names):
    """Every step, one after the other; the names of those that went wrong."""
    steps = [step for step in HARMLESS if step.__name__ in names]
    turn = Turn(dist.get_rank(), dist.get_world_size())
    wrong = []
    for step in steps:
        if not step(turn):
            wrong.append(step.__name__)
        dist.barrier()
    return wrong


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.timeout(300)
def test_every_collective_is_right_and_silent(ranks):
    run = launch(all_steps, [step.__name__ for step in HARMLESS], ranks=ranks, timeout=200)
    assert list(run) == [[]] * ranks
    assert not [line for _, line in run.output if "course_lib" in line]


@pytest.mark.parametrize("step", HARMLESS[::4], ids=lambda step: step.__name__)
@pytest.mark.timeout(300)
def test_a_collective_is_right_and_silent_alone(step):
    """As the only thing a launch does: ranks return as soon as they can, while others may still wait."""

    def work():
        return step(Turn(dist.get_rank(), dist.get_world_size()))

    for ranks in (2, 3):
        assert list(launch(work, ranks=ranks, timeout=200)) == [True] * ranks
