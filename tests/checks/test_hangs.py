"""The cause of a hang is told from the calls that ranks wait in, and contradicts no line of the table above it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib.checks.inside.observe import Outcome, observe
from course_lib.checks.judging import explain_hang


def all_send(_):
    dist.send(torch.ones(1), (dist.get_rank() + 1) % dist.get_world_size())


def all_receive(_):
    dist.recv(torch.ones(1), (dist.get_rank() + 1) % dist.get_world_size())


def nobody_sends(_):
    if dist.get_rank() == 0:
        dist.recv(torch.ones(1), 1)


def one_leaves(_):
    if dist.get_rank() != 1:
        dist.all_reduce(torch.ones(1))


def group_of_some(_):
    if dist.get_rank() == 0:
        dist.new_group([0, 1])


def groups_in_a_circle(_):
    pair = dist.new_group([0, 1])
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1), group=pair)
    dist.all_reduce(torch.ones(1))


def one_loops(_):
    while dist.get_rank() == 0:
        pass
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        pytest.param(all_send, "Every rank waits in its send", marks=pytest.mark.slow),
        (all_receive, "Every rank waits for a message"),
        (nobody_sends, "Rank 0 waits for a message that nobody sends; ranks 1 and 2 have returned"),
        (one_leaves, "Rank 1 has returned, and ranks 0 and 2 wait in all_reduce"),
        pytest.param(group_of_some, "All ranks create a process group together", marks=pytest.mark.slow),
        pytest.param(groups_in_a_circle, "in different groups", marks=pytest.mark.slow),
        pytest.param(one_loops, "Rank 0 is still at work while the others wait", marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_cause_is_what_the_ranks_wait_in(answer, says):
    outcome = observe(lambda given: given(None), answer, 3, {}, timeout=2.5)
    assert outcome.kind == ("slow" if answer is one_loops else "stuck")
    assert says in explain_hang(outcome), outcome.shown


def test_states_that_a_forger_wrote_are_no_outcome():
    record = {**vars(Outcome("stuck")), "states": [["waiting", "x" * 10, 3]]}
    with pytest.raises(ValueError, match="not an outcome"):
        Outcome.of_record(record)
    assert "secret" not in explain_hang(Outcome("stuck", states=(("waiting", "a secret!", ""),)))
