"""What follows from what the ranks say: who waits in vain, and which calls do not fit together."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib import LaunchError, launch
from course_lib.launcher.hangs.call_log import CallLog, watch_calls
from course_lib.launcher.hangs.deadlock import awaited_ranks, find_deadlock, first_difference, odd_caller
from course_lib.launcher.hangs.record import ANYBODY, LoggedCall, LoggedMessage, RankRecord, Wait
from course_lib.launcher.hangs.stacks import Where, locate, stack_of_dump

ALL = (0, 1, 2, 3)


def in_collective(number: int, op: str = "all_reduce", root: int | None = None, **more) -> RankRecord:
    """A rank that waits in the `number`-th collective of all four."""
    return RankRecord(begun={"g": number}, wait=Wait(op, "g", number, ALL, root=root), **more)


def receiving(peer: int, number: int = 1, sent: dict | None = None) -> RankRecord:
    posted = {("recv", "g", peer, 0): number}
    return RankRecord(wait=Wait("recv", "g", number, peer=peer), posted=posted | (sent or {}))


def through(number: int, **more) -> RankRecord:
    """A rank that has begun so many collectives, and waits for nothing."""
    return RankRecord(begun={"g": number}, **more)


def test_ranks_that_wait_for_one_that_has_returned_wait_in_vain():
    deadlock = find_deadlock({0: in_collective(3), 1: through(2), 2: in_collective(3)}, returned={1})
    assert deadlock is not None
    assert deadlock.needs == {0: frozenset({1}), 2: frozenset({1})}
    assert deadlock.describe() == "ranks 0 and 2 wait in all_reduce for rank 1, which has returned"
    assert deadlock.culprits(ranks=4) == (1,)


def test_a_rank_that_calls_once_too_often_is_the_culprit_when_most_have_returned():
    records = {0: in_collective(3), 1: through(2), 2: through(2), 3: through(2)}
    deadlock = find_deadlock(records, returned={1, 2, 3})
    assert deadlock is not None
    assert deadlock.culprits(ranks=4) == (0,)


def test_ranks_in_a_circle_wait_in_vain():
    deadlock = find_deadlock({0: receiving(1), 1: receiving(2), 2: receiving(0)}, returned=set())
    assert deadlock is not None
    assert deadlock.describe() == "rank 0 waits for rank 1, rank 1 waits for rank 2, rank 2 waits for rank 0"


IN_G = Wait("all_reduce", "g", 2, (0, 1))
NO_DEADLOCK = {
    "one still computes": ({0: in_collective(3), 1: through(2), 2: in_collective(3)}, set()),
    "all have come": ({0: in_collective(3), 1: in_collective(3), 2: in_collective(3), 3: in_collective(3)}, set()),
    "the message is on its way": ({0: receiving(1), 1: RankRecord(posted={("send", "g", 0, 0): 1})}, {1}),
    "a thread may still help": ({0: in_collective(3), 1: through(2, alone=False)}, {1}),
    "the one who waits has threads": ({0: in_collective(3, alone=False), 1: through(2)}, {1}),
    "a broadcast waits for its root alone": (
        {0: through(0), 1: in_collective(1, "broadcast", root=0), 2: receiving(1)},
        set(),
    ),
    "somebody takes what comes from anybody": (
        {0: RankRecord(wait=Wait("send", "g", 1, peer=1)), 1: RankRecord(posted={("recv", "g", ANYBODY, 0): 1})},
        {1},
    ),
    "one moved on while it was recorded": (
        {
            0: RankRecord(begun={"g": 1}, wait=Wait("all_gather", "h", 1, (0, 1))),
            1: RankRecord(begun={"g": 2}, wait=IN_G),
        },
        set(),
    ),
    "another group": (
        {0: in_collective(3), 1: RankRecord(begun={"g": 3, "h": 1}, wait=Wait("x", "h", 1, (1, 2)))},
        set(),
    ),
}


@pytest.mark.parametrize(("records", "returned"), NO_DEADLOCK.values(), ids=NO_DEADLOCK)
def test_what_is_not_certain_is_not_claimed(records, returned):
    assert find_deadlock(records, returned) is None


def test_the_one_who_holds_the_others_up_is_found_behind_those_who_wait_for_them():
    """Rank 3 waits in the next collective, 0 and 2 in this one, and all of them for rank 1."""
    records = {0: in_collective(2, "reduce", root=0), 2: in_collective(2, "reduce", root=0), 3: in_collective(3)}
    where = {rank: Where("waiting") for rank in records} | {1: Where("running")}
    assert awaited_ranks(records, where) == (1,)


def call(**changes) -> RankRecord:
    return RankRecord(
        calls=[LoggedCall(**{"group": "g", "number": 1, "op": "broadcast", "dtype": "float32"} | changes)]
    )


@pytest.mark.parametrize(
    "odd",
    [{"op": "all_reduce"}, {"dtype": "float64"}, {"shape": (5,)}, {"root": 2}, {"reduction": "max"}],
    ids=lambda odd: next(iter(odd)),
)
def test_a_call_that_differs_is_found_and_the_minority_named(odd):
    usual = {"shape": (4,), "root": 0, "reduction": "sum"}
    difference = first_difference({0: call(**usual), 1: call(**(usual | odd)), 2: call(**usual)})
    assert difference is not None
    assert odd_caller(difference) == 1


def test_what_is_not_known_does_not_differ():
    assert first_difference({0: call(root=1, reduction="sum"), 1: call(), 2: call(root=1)}) is None


def test_numbers_of_another_generation_are_not_compared():
    assert first_difference({0: call(group="0/0/0"), 1: call(group="1/0/0", op="barrier")}) is None


def message(kind: str, peer: int, *, number: int = 1, dtype: str = "float32", shape: tuple = (4,)) -> LoggedMessage:
    return LoggedMessage(kind, "g", peer, 0, number, dtype, shape)


@pytest.mark.parametrize(("received", "fits"), [((4,), True), ((2, 2), True), ((5,), False)])
def test_a_message_must_be_received_as_large_as_it_was_sent(received, fits):
    records = {
        0: RankRecord(messages=[message("send", 1)]),
        1: RankRecord(messages=[message("recv", 0, shape=received)]),
    }
    assert (first_difference(records) is None) is fits


def test_messages_are_compared_in_order():
    sent = [message("send", 1, number=1, shape=(2,)), message("send", 1, number=2, shape=(3,))]
    received = [message("recv", 0, number=2, shape=(3,)), message("recv", 0, number=1, shape=(2,))]
    assert first_difference({0: RankRecord(messages=sent), 1: RankRecord(messages=received)}) is None


@pytest.mark.parametrize(("expected", "fits"), [((2, 1), True), ((2, 3), False)])
def test_an_all_to_all_must_expect_what_is_sent(expected, fits):
    def exchange(sends, expects):
        return call(op="all_to_all", splits=(sends, expects))

    records = {0: exchange((1, 2), (1, 1)), 1: exchange((1, 1), expected)}
    assert (first_difference(records) is None) is fits


def test_a_function_that_a_check_hands_out_does_not_hide_the_learners_line():
    calls = [
        ("site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce"),
        ("course_lib/lessons/lesson_10/fix_the_loss.py", 8, "all_reduce"),
        ("answer.py", 3, "replica_loss"),
        ("course_lib/lessons/lesson_10/fix_the_loss.py", 7, "drive"),
        ("course_lib/checks/inside/observe.py", 6, "observe"),
    ]
    dump = "".join(f'  File "/there/{file}", line {line} in {function}\n' for file, line, function in calls)
    found = locate(stack_of_dump(f"Stack (most recent call first):\n{dump}"))
    assert found.frame is not None
    assert (found.doing, found.collective, found.frame.line) == ("waiting", "all_reduce", 3)


LAUNCHED = [
    ("course_lib/launcher/rank/main.py", 2, "run"),
    ("lib/python3.12/multiprocessing/process.py", 1, "_bootstrap"),
    ("course_lib/launcher/supervisor/supervisor.py", 5, "supervise"),
]
WAITING = [
    ("course_lib/launcher/hangs/call_log.py", 9, "logged"),
    ("site-packages/torch/distributed/distributed_c10d.py", 8, "all_reduce"),
    ("answer.py", 7, "work"),
]


@pytest.mark.parametrize("rest", [LAUNCHED, [("answer.py", 6, "recursive")] * 2], ids=["whole", "cut by faulthandler"])
def test_the_launchers_frames_are_not_the_learners(rest):
    stdlib = Path(multiprocessing.__file__).parents[1].as_posix()
    dump = "".join(f'  File "/there/{file}", line {line} in {function}\n' for file, line, function in WAITING + rest)
    dump = dump.replace("/there/lib/python3.12", stdlib) + "  ...\n" * (rest is not LAUNCHED)
    found = stack_of_dump(f"Stack (most recent call first):\n{dump}")
    assert not [frame.file for frame in found if "launcher" in frame.file]
    assert [frame.line for frame in found] == ([7, 8] if rest is LAUNCHED else [6, 6, 7, 8])


def fails_in_a_collective():
    dist.all_reduce(torch.ones(1, dtype=torch.float8_e4m3fn))  # gloo knows no such dtype


def waits_for_nobody():
    if dist.get_rank() == 0:
        dist.recv(torch.ones(1), 1)


@pytest.mark.parametrize("function", [fails_in_a_collective, waits_for_nobody])
def test_an_error_shows_no_frame_of_the_launcher(function):
    with pytest.raises(LaunchError) as caught:
        launch(function, ranks=2)
    assert "course_lib" not in str(caught.value)
    assert f"in {function.__name__}" in str(caught.value) or "dist.recv(torch.ones(1), 1)" in str(caught.value)


def test_a_message_is_noted_before_its_call_and_whether_the_call_returned_after_it():
    told = []

    class Group:
        def recv(self, tensor):
            told.append("in the call")
            return 1 / tensor

    watch_calls(
        Group, "recv", lambda group, arguments, keywords: told.append(arguments) or "message", lambda *a: told.append(a)
    )
    assert Group().recv(1) == 1
    with pytest.raises(ZeroDivisionError):
        Group().recv(0)
    assert told == [(1,), "in the call", ("message", 1, True), (0,), "in the call", ("message", None, False)]


@pytest.mark.parametrize("returned", [True, False])
def test_a_message_counts_from_before_its_call_unless_the_call_fails(returned):
    log, group = CallLog(), type("Group", (), {"group_name": "0"})()
    message = log._before_message("send", group, ([torch.ones(2)], 1, 0), {})
    assert log.messages_since({}) == [message]
    log._after_message(message, None, returned)
    assert log.messages_since({}) == ([message] if returned else [])
    assert sum(log.messages_so_far().values()) == returned
