"""One trace of all ranks, on one clock, and who came last to its collectives."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_lib import launch, trace
from course_lib.launcher.tracing.recording import Collective, Profile, clock_skew
from course_lib.launcher.tracing.stragglers import find_stragglers
from course_lib.launcher.tracing.trace_file import (
    TraceError,
    arrivals_in,
    exposed_communication,
    read_trace,
    spans_in,
    trace_events,
    write_trace,
)
from course_lib.runtime.trace import Span
from tests.conftest import wait_until

PHASES = {"X", "M", "s", "t", "f", "i", "C"}  # those of the format's that our traces use
PACE = 0.3  # seconds from one span to the next
LATE = 50_000  # microseconds: much less, and much more than it takes to read two clocks of one machine
ROUNDING = 0.01  # microseconds: the profiler writes nanoseconds


def check_format(events: list[dict[str, Any]]) -> None:
    """The rules of the trace-event format that a viewer relies on."""
    for event in events:
        assert event["ph"] in PHASES
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event.get("args", {}), dict)
    timed = [event for event in events if event["ph"] not in "MC"]
    assert all(isinstance(event["ts"], float | int) and event["ts"] == event["ts"] for event in timed)
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    check_nesting([event for event in timed if event["ph"] == "X"])
    rows = {(event["pid"], event["tid"]) for event in timed}
    named = [(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"]
    assert rows <= set(named)
    assert len(named) == len(set(named))


def check_nesting(events: list[dict[str, Any]]) -> None:
    """On one row, complete events lie beside or inside each other."""
    open_until: dict[tuple[int, int], list[float]] = defaultdict(list)
    for event in events:
        assert event["dur"] >= 0
        ends = open_until[event["pid"], event["tid"]]
        while ends and ends[-1] <= event["ts"] + ROUNDING:
            ends.pop()
        assert not ends or event["ts"] + event["dur"] <= ends[-1] + ROUNDING, event
        ends.append(event["ts"] + event["dur"])


def slices(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X" and event.get("cat") == kind]


def three_updates() -> None:
    for _ in range(3):
        with trace.span("forward", at_least=PACE):
            numbers = torch.ones(4)
        with trace.span("communication"):
            dist.all_reduce(numbers)


def test_a_trace_has_a_process_for_every_rank_with_its_spans_and_collectives_on_one_clock(tmp_path: Path) -> None:
    run = launch(three_updates, ranks=3)
    events = read_trace(run.trace(tmp_path / "run.json"))
    check_format(events)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "rank 0", 1: "rank 1", 2: "rank 2"}
    for rank in range(3):
        mine = [event for event in events if event["pid"] == rank]
        assert len(slices(mine, "forward")) == len(slices(mine, "communication")) == 3
        assert [event["name"] for event in slices(mine, "collective")] == ["all_reduce"] * 3
        around, inside = slices(mine, "communication"), slices(mine, "collective")  # on one clock
        for outer, inner in zip(around, inside, strict=True):
            assert outer["ts"] - LATE <= inner["ts"] <= inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + LATE


def test_a_name_that_ends_with_gz_is_compressed(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.json.gz", 1, [Span(0, "forward", 0.0, 1.0)])
    assert json.loads(gzip.decompress(path.read_bytes()))["displayTimeUnit"] == "ms"
    assert len(slices(read_trace(path), "forward")) == 1


def test_spans_that_lie_across_each_other_get_rows_of_their_own() -> None:
    spans = [Span(0, "backward", 0.0, 2.0), Span(0, "communication", 1.0, 3.0), Span(0, "inner", 0.5, 1.0)]
    events = trace_events(1, spans)
    check_format(events)
    rows = {event["name"]: event["tid"] for event in events if event["ph"] == "X"}
    assert rows["backward"] == rows["inner"] != rows["communication"]


def test_a_collective_whose_end_was_not_seen_lasts_until_the_last_rank_has_come() -> None:
    events = trace_events(2, [], [Collective(0, "g", 1, "all_reduce", 1.0), Collective(1, "g", 1, "all_reduce", 3.0)])
    check_format(events)
    assert [event["dur"] for event in slices(events, "collective")] == pytest.approx([2e6, 1.0])


def test_what_is_no_trace_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"traceEvents": []}')
    with pytest.raises(TraceError, match="is not a trace from this course: give a trace that"):
        read_trace(tmp_path / "other.json")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"{}" * 1000)[:40])
    with pytest.raises(TraceError, match="is not a trace from this course"):
        read_trace(tmp_path / "cut.gz")
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="cannot be written"):
        write_trace(tmp_path / "no such folder" / "run.json", 1, [])


def paced(slow: int) -> None:
    for _ in range(5):
        with trace.span("forward", at_least=1.0 if dist.get_rank() == slow else 0.01):
            pass
        dist.all_reduce(torch.ones(4))


@pytest.mark.slow  # on a crowded machine, waiting for a core may explain the delay: then nobody is named, rightly
def test_the_rank_that_was_slowed_down_is_named(tmp_path: Path) -> None:
    run = launch(paced, 2, ranks=4)
    found = run.stragglers()
    assert found.slowest == 2
    assert len(found.late(2)) == len(found.arrivals) == 5
    assert "Rank 2 is the straggler: last in 5 of 5 collectives" in str(found)
    collectives, _ = arrivals_in(read_trace(run.trace(tmp_path / "run.json")))
    assert find_stragglers(4, collectives).slowest == 2


def arrivals(*times: tuple[float, ...]) -> list[Collective]:
    """One collective for each tuple: when rank 0, rank 1, ... came to it."""
    return [
        Collective(rank, "g", number, "all_reduce", at)
        for number, row in enumerate(times)
        for rank, at in enumerate(row)
    ]


def test_what_a_rank_costs_is_how_much_later_it_came_than_the_one_before_it() -> None:
    found = find_stragglers(3, arrivals((0.0, 0.5, 2.0), (3.0, 3.2, 3.1)))
    assert [(one.last, round(one.late, 9)) for one in found.arrivals] == [(2, 1.5), (1, 0.1)]
    assert (found.late(2), found.late(0)) == ([1.5], [])


def test_ranks_that_take_turns_in_being_last_are_no_stragglers() -> None:
    found = find_stragglers(2, arrivals((0.0, 0.5), (1.5, 1.0), (2.0, 2.5), (3.5, 3.0)))
    assert found.slowest is None
    assert "No rank stands out" in str(found)


def test_microseconds_make_no_straggler() -> None:
    assert find_stragglers(2, arrivals(*((at, at + 1e-6) for at in range(9)))).slowest is None


def test_without_collectives_there_is_nobody_to_wait_for() -> None:
    assert "no rank waited for another" in str(find_stragglers(2, []))
    assert find_stragglers(1, arrivals((0.0,), (1.0,))).slowest is None


def small_model() -> float:
    model = torch.nn.LSTM(8, 8)
    time.sleep(PACE)
    with trace.span("forward"):
        outputs, _ = model(torch.ones(5, 2, 8))
    with trace.span("backward"):
        outputs.sum().backward()
    return 0.0


def test_a_profile_of_every_rank_lies_beside_the_spans_on_the_same_clock(tmp_path: Path) -> None:
    run = launch(small_model, ranks=2, profile=True)
    assert run.output == []  # the profiler's own words are not the ranks'
    events = read_trace(run.trace(tmp_path / "run.json"))
    check_format(events)
    for rank in range(2):
        mine = [event for event in events if event["pid"] == rank]
        (forward,) = slices(mine, "forward")
        lstm = next(event for event in slices(mine, "cpu_op") if event["name"] == "aten::lstm")
        assert forward["ts"] - LATE <= lstm["ts"]
        assert lstm["ts"] + lstm["dur"] <= forward["ts"] + forward["dur"] + LATE


def skew_of(folder: str) -> float:
    """As if each rank were on a machine of its own, and rank 1's clock 1000 seconds ahead."""
    rank = dist.get_rank()
    os.environ |= {"GROUP_RANK": str(rank), "GROUP_WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    store = dist.FileStore(f"{folder}/store", 2)
    return clock_skew(store, clock=lambda: time.time() + 1000 * rank)


def test_the_clocks_of_two_machines_are_compared_by_asking(tmp_path: Path) -> None:
    here, there = launch(skew_of, str(tmp_path), ranks=2)
    assert here == 0.0
    assert there == pytest.approx(-1000, abs=100)  # a busy machine answers late


def test_without_being_asked_nothing_is_profiled() -> None:
    assert launch(small_model, ranks=1).profiles == []


def profile_of(*events: tuple[str, str, float, float]) -> Profile:
    """What the profiler would have seen: kind, name, from, to in seconds."""
    return Profile.pack(
        0,
        0.0,
        [
            {"ph": "X", "cat": kind, "name": name, "ts": start * 1e6, "dur": (end - start) * 1e6, "pid": 1, "tid": 1}
            for kind, name, start, end in events
        ],
    )


def exposed(*events: tuple[str, str, float, float]) -> list[tuple[str, float, float]]:
    found = exposed_communication(profile_of(*events))
    return [(span.label, round(span.start, 6), round(span.end, 6)) for span in found]


MESSAGE = ("user_annotation", "gloo:all_reduce", 1.0, 4.0)


def test_communication_is_exposed_where_nothing_is_computed() -> None:
    assert exposed(MESSAGE) == [("all_reduce", 1.0, 4.0)]
    assert exposed(MESSAGE, ("cpu_op", "aten::mm", 0.0, 5.0)) == []
    assert exposed(MESSAGE, ("cpu_op", "aten::mm", 2.0, 3.0)) == [("all_reduce", 1.0, 2.0), ("all_reduce", 3.0, 4.0)]
    assert exposed(MESSAGE, ("cpu_op", "c10d::allreduce_", 1.0, 4.0)) == [("all_reduce", 1.0, 4.0)]


def test_on_a_gpu_it_is_kernels_that_compute_and_nccls_that_communicate() -> None:
    nccl = ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 1.0, 4.0)
    launched = ("cpu_op", "aten::mm", 0.0, 9.0)
    assert exposed(nccl, launched, ("kernel", "gemm", 0.0, 3.0)) == [("all_reduce", 3.0, 4.0)]


def test_time_in_which_two_messages_are_under_way_counts_once() -> None:
    second = ("user_annotation", "gloo:broadcast", 2.0, 6.0)
    assert exposed(MESSAGE, second) == [("all_reduce", 1.0, 4.0), ("broadcast", 4.0, 6.0)]


def late_at_the_sum(folder: Path) -> None:
    if dist.get_rank() == 0:
        (folder / "rank 0 is about to wait").touch()
    else:
        assert wait_until((folder / "rank 0 is about to wait").exists)
        time.sleep(PACE)
    with trace.span("communication"):
        dist.all_reduce(torch.ones(4))


def test_who_waits_for_a_late_rank_shows_exposed_communication(tmp_path: Path) -> None:
    run = launch(late_at_the_sum, tmp_path, ranks=2, profile=True)
    path = run.trace(tmp_path / "run.json")
    json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN, no Infinity
    events = read_trace(path)
    check_format(events)
    waited = [event for event in slices(events, "exposed communication") if event["pid"] == 0]
    assert [event["name"] for event in waited] == ["exposed communication all_reduce"]
    assert waited[0]["dur"] >= PACE * 1e6 / 2
    ranks, spans = spans_in(events)
    assert ranks == 2
    assert {span.name for span in spans} == {"communication", "exposed communication"}
