"""Run PyTorch's profiler on a rank. Its events are returned along with the spans."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from course_lib import machine, trace
from course_lib.launchers.diagnosis import call_log
from course_lib.launchers.diagnosis.record import Call
from course_lib.launchers.tracing.events import Collective, Profile, collectives_of, wall_minus_monotonic, whole_arrows

MOST_EVENTS = 200_000  # per rank: a browser can show somewhat more, but not for 64 ranks
SILENT = {"KINETO_LOG_LEVEL": "99"}  # otherwise the profiler logs its start and stop in the middle of the ranks' output
KEPT_PHASES = frozenset("XsftiM")  # complete, flow, instant, metadata: what a trace of several ranks can hold


class ProfileKeeper:
    """Holds what this process recorded under the profiler until it is reported."""

    def __init__(self) -> None:
        self.profile: Profile | None = None
        self.collectives: list[Collective] = []  # from the profiled block: in a long run, they drop out of the record


keeper = ProfileKeeper()


@contextmanager
def profiled() -> Iterator[None]:
    """Record spans and PyTorch's operators (on a GPU, its kernels too) inside the block, on this rank.

    `run.trace(file)` writes them. Recording uses more memory the longer it lasts: put a few updates into the block, not
    a run of hours. A second block replaces what the first one recorded.
    """
    from torch.profiler import ProfilerActivity, profile

    os.environ.update(SILENT | os.environ)
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if machine.device().type == "cuda" else [])
    rank, was_on = int(os.environ.get("RANK", "0")), trace.recorder.on
    with profile(activities=kinds, acc_events=True) as recorded:  # else PyTorch 2.11 warns about later cycles
        trace.recorder.rank, trace.recorder.on = rank, True
        try:
            yield
        finally:
            trace.recorder.on = was_on
            _wait_for_gpu()
    keeper.profile = _pack(rank, _exported(recorded))
    log = call_log.of_this_process()
    keeper.collectives = collectives_of(rank, log.calls()) if log else []


def take_profile() -> Profile | None:
    """Return the profile recorded on this rank and clear it."""
    profile, keeper.profile = keeper.profile, None
    return profile


def take_collectives(rank: int, calls: Sequence[Call]) -> list[Collective]:
    """Return this rank's calls together with those recorded in a profiled block, and clear the latter."""
    earlier, keeper.collectives = keeper.collectives, []
    by_key = {one.key: one for one in [*earlier, *collectives_of(rank, calls)]}
    return sorted(by_key.values(), key=lambda one: one.start)


def _exported(recorded: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        recorded.export_chrome_trace(path)
        with open(path, encoding="utf-8", errors="replace") as file:
            return json.load(file, strict=False)


def _pack(rank: int, exported: dict[str, Any]) -> Profile:
    """Return the events, in microseconds since the first one, whose time is on the clock of `time.monotonic()`."""
    events = [event for event in exported.get("traceEvents", ()) if _is_kept(event)]
    timed = sorted((event for event in events if event["ph"] != "M"), key=lambda event: event["ts"])[:MOST_EVENTS]
    first = timed[0]["ts"] if timed else 0.0
    timed = [event | {"ts": event["ts"] - first} for event in whole_arrows(timed)]
    wall = exported.get("baseTimeNanoseconds", 0) / 1e9 + first / 1e6
    names = [event for event in events if event["ph"] == "M" and event["name"] == "thread_name"]
    return Profile.pack(rank, wall - wall_minus_monotonic(), names + timed)


def _is_kept(event: dict[str, Any]) -> bool:
    """Return whether an event belongs to a thread or a stream. The profiler's internal events have strings as pids."""
    return event.get("ph") in KEPT_PHASES and isinstance(event.get("pid"), int) and "tid" in event


def _wait_for_gpu() -> None:
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
