"""PyTorch's own schedules become ours: the same orders where we have the same schedule, drawn and timed where not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from course_lib.pipeline.named_schedules import (
    from_torch,
    interleaved_one_f_one_b,
    looped_bfs,
    zero_bubble_h1,
    zero_bubble_v,
)
from course_lib.pipeline.schedule import Schedule, check
from course_lib.pipeline.simulation import ActionCosts, simulate

THIRDS = ActionCosts(forward=1, backward=2)  # F, B and W take equally long
SIZES = [(2, 2), (2, 4), (2, 8), (3, 3), (3, 6), (4, 4), (4, 8), (4, 10), (4, 12), (6, 12)]


def same_order(theirs: Schedule, ours: Schedule) -> None:
    for stage, (row, own) in enumerate(zip(theirs.stages, ours.stages, strict=True)):
        assert row == own, f"stage {stage}"
    assert (theirs.virtual, theirs.layout) == (ours.virtual, ours.layout)


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
@pytest.mark.parametrize("virtual", [2, 3])
def test_interleaved_1f1b_is_pytorchs_action_by_action(stages: int, micro_batches: int, virtual: int):
    theirs = from_torch("Interleaved1F1B", stages, micro_batches, virtual)
    same_order(theirs, interleaved_one_f_one_b(stages, micro_batches, virtual=virtual))


@pytest.mark.parametrize(("stages", "micro_batches"), [*SIZES, (1, 3), (3, 5), (6, 1)])
@pytest.mark.parametrize("virtual", [1, 2, 3])
def test_looped_bfs_is_pytorchs_action_by_action(stages: int, micro_batches: int, virtual: int):
    theirs = from_torch("LoopedBFS", stages, micro_batches, virtual)
    same_order(theirs, looped_bfs(stages, micro_batches, virtual=virtual))


@pytest.mark.parametrize(("stages", "micro_batches"), [*SIZES, (1, 3), (4, 3), (6, 1)])
def test_zb_h1_is_pytorchs_interleaved_zero_bubble_of_one_part(stages: int, micro_batches: int):
    theirs = from_torch("InterleavedZeroBubble", stages, micro_batches, virtual=1)
    same_order(theirs, zero_bubble_h1(stages, micro_batches))


@pytest.mark.parametrize(("stages", "micro_batches"), [*SIZES, (2, 1), (3, 5), (5, 3), (6, 1)])
def test_zb_v_is_pytorchs_action_by_action(stages: int, micro_batches: int):
    same_order(from_torch("ZBVZeroBubble", stages, micro_batches), zero_bubble_v(stages, micro_batches))


@pytest.mark.parametrize("name", ["DualPipeV", "InterleavedZeroBubble"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (2, 8), (3, 6), (4, 8), (4, 12)])
def test_schedules_that_we_do_not_have_are_legal_and_can_be_timed(name: str, stages: int, micro_batches: int):
    schedule = from_torch(name, stages, micro_batches)
    check(schedule)
    assert schedule.name == f"torch {name}"
    assert simulate(schedule, THIRDS).busy == (2 * 3 * micro_batches,) * stages


def test_an_overlapped_pair_becomes_a_forward_and_then_a_backward_pass():
    schedule = from_torch("DualPipeV", 2, 4)
    assert schedule.layout == "v"
    kinds = [" ".join(map(str, row)) for row in schedule.stages]
    assert "F3v1 B1" in kinds[1]
    whole = [action for action in schedule.stages[0] if action.kind == "B" and (0, action.piece) not in schedule.split]
    assert whole  # some backward passes are split, others are not
    assert schedule.split


def test_what_pytorch_does_not_support_is_refused_in_its_own_words():
    with pytest.raises(ValueError, match="multiple of the number of rounds"):
        from_torch("Interleaved1F1B", 2, 5)
    with pytest.raises(ValueError, match="Unknown schedule name"):
        from_torch("Fastest", 2, 4)


@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_a_schedule_that_pytorch_has_no_order_of_is_refused_with_ours(name: str):
    with pytest.raises(ValueError, match=f"Schedule{name} .*no order to read: use gpipe or one_f_one_b"):
        from_torch(name, 2, 4)


def moved(stages, micro_batches):
    """A PyTorch that keeps its order somewhere else."""
    return SimpleNamespace(orders={})


def strange(stages, micro_batches):
    """A PyTorch with a kind of action that is not known here."""
    one = SimpleNamespace(computation_type=SimpleNamespace(value="X"), stage_index=0, microbatch_index=0)
    return SimpleNamespace(stage_index_to_group_rank={0: 0, 1: 0}, pipeline_order={0: [one]})


@pytest.mark.parametrize("make", [moved, strange])
def test_another_pytorch_is_answered_in_a_sentence(make):
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti

    changed = type("ScheduleChanged", (PipelineScheduleMulti,), {"__new__": lambda cls, *given: make(*given)})
    with pytest.raises(NotImplementedError, match=r"this PyTorch .* keeps the order of ScheduleChanged where"):
        from_torch(changed, 1, 1)
