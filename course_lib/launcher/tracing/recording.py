"""What a rank records besides its spans: when it entered each collective, and what PyTorch's profiler saw.

We ask rank 0 for the time to find out how far apart the machines' clocks are. Exposed communication is the time in
which a rank's messages are in flight and it computes nothing. That includes the time it waits for a slower rank.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from course_lib.launcher.hangs import call_log
from course_lib.launcher.hangs.record import LoggedCall
from course_lib.runtime import machine, trace

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


QUESTIONS = 10  # per machine: the fastest answer is the most accurate


def clock_skew(store: Store, clock: Callable[[], float] = time.time) -> float:
    """Return the seconds to add to this machine's wall clock to get rank 0's. Every rank must call it.

    The first rank of each machine asks rank 0 several times. For the fastest answer, it assumes that both directions
    took equally long, so the skew is off by at most half of the round trip. The questions go through the store, because
    with NCCL a message between two ranks would first set up a communicator.
    """
    node, nodes = int(os.environ.get("GROUP_RANK", "0")), int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    first_here = os.environ.get("LOCAL_RANK", "0") == "0"
    if nodes <= 1 or (node == 0 and not first_here):
        return 0.0
    if node == 0:
        for other, number in itertools.product(range(1, nodes), range(QUESTIONS)):
            store.get(f"skew/{other}/question/{number}")
            store.set(f"skew/{other}/answer/{number}", repr(clock()))
        return 0.0
    if first_here:
        answers = []
        for number in range(QUESTIONS):
            sent_at = clock()
            store.set(f"skew/{node}/question/{number}", "?")
            rank_0_time = float(store.get(f"skew/{node}/answer/{number}"))
            received_at = clock()
            answers.append((received_at - sent_at, rank_0_time - (sent_at + received_at) / 2))
        # The first question may have waited for rank 0 to answer other machines.
        store.set(f"skew/{node}", repr(min(answers[1:])[1]))
    return float(store.get(f"skew/{node}"))


@dataclass(frozen=True)
class Collective:
    """The `number`-th collective of a process group, with the times (in seconds) at which one rank entered and left it.

    `end` is None if we did not see the end: DistributedDataParallel waits for its buckets in C++.
    """

    rank: int
    group: str
    number: int
    op: str
    start: float
    end: float | None = None
    text: str = ""  # a description for people

    @property
    def key(self) -> tuple[str, int]:
        """A key that is the same on every rank that takes part."""
        return self.group, self.number

    def since(self, zero: float) -> Collective:
        """Return the same collective with times relative to `zero`."""
        return replace(self, start=self.start - zero, end=None if self.end is None else self.end - zero)


@dataclass(frozen=True)
class Profile:
    """What PyTorch's profiler recorded on one rank: trace events, in microseconds since `zero`, which is in seconds."""

    rank: int
    zero: float
    packed: bytes = field(repr=False)

    def since(self, zero: float) -> Profile:
        """Return the same profile with times relative to `zero`."""
        return replace(self, zero=self.zero - zero)

    @classmethod
    def pack(cls, rank: int, zero: float, events: Sequence[dict[str, Any]]) -> Profile:
        """Return a profile with compressed events, small enough to send."""
        return cls(rank, zero, zlib.compress(json.dumps(events).encode()))

    def events(self) -> list[dict[str, Any]]:
        """Return the events as the profiler wrote them, with `ts` relative to `zero`."""
        return json.loads(zlib.decompress(self.packed))


def collectives_of(rank: int, calls: Sequence[LoggedCall]) -> list[Collective]:
    """Return the calls that the flight recorder timed, with times on the clock of `time.monotonic()`."""
    shift, recorded = wall_minus_monotonic(), []
    for call in calls:
        if call.began:
            end = None if call.ended is None else max(call.began, call.ended) - shift
            began = call.began - shift
            recorded.append(Collective(rank, call.group, call.number, call.op, began, end, str(call)))
    return recorded


def wall_minus_monotonic() -> float:
    """Return wall-clock time minus monotonic time on this machine, from the best of several readings."""
    looks = [(time.monotonic(), time.time(), time.monotonic()) for _ in range(5)]
    before, wall, after = min(looks, key=lambda look: look[2] - look[0])
    return wall - (before + after) / 2


MAX_EVENTS = 200_000  # per rank: a browser can show somewhat more, but not for 64 ranks
SILENT = {"KINETO_LOG_LEVEL": "99"}  # otherwise the profiler logs its start and stop in the middle of the ranks' output
PHASES = frozenset("XsftiM")  # complete, flow, instant, metadata: what a trace of several ranks can hold


@dataclass
class ProfileKeeper:
    """What this process recorded under the profiler, until it is reported."""

    profile: Profile | None = None
    collectives: list[Collective] = field(default_factory=list)  # in a long run, they drop out of the record


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
    with profile(activities=kinds, acc_events=True) as recorded:  # otherwise PyTorch 2.11 warns about later cycles
        trace.recorder.rank, trace.recorder.on = rank, True
        try:
            yield
        finally:
            trace.recorder.on = was_on
            machine.wait_for_gpu()
    keeper.profile = _pack(rank, recorded)
    keeper.collectives = collectives_of(rank, log.calls()) if (log := call_log.of_this_process()) else []


def take_profile() -> Profile | None:
    """Return the profile recorded on this rank and clear it."""
    profile, keeper.profile = keeper.profile, None
    return profile


def take_collectives(rank: int, calls: Sequence[LoggedCall]) -> list[Collective]:
    """Return this rank's calls together with those recorded in a profiled block, and clear the latter."""
    earlier, keeper.collectives = keeper.collectives, []
    by_key = {collective.key: collective for collective in [*earlier, *collectives_of(rank, calls)]}
    return sorted(by_key.values(), key=lambda collective: collective.start)


def _pack(rank: int, recorded: Any) -> Profile:
    """Return the events, in microseconds since the first one, whose time is on the clock of `time.monotonic()`."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        recorded.export_chrome_trace(path)
        with open(path, encoding="utf-8", errors="replace") as file:
            exported = json.load(file, strict=False)
    # The profiler's internal events have strings as pids.
    shown = [event for event in exported.get("traceEvents", ()) if event.get("ph") in PHASES]
    events = [event for event in shown if isinstance(event.get("pid"), int) and "tid" in event]
    timed = sorted((event for event in events if event["ph"] != "M"), key=lambda event: event["ts"])[:MAX_EVENTS]
    first = timed[0]["ts"] if timed else 0.0
    timed = [event | {"ts": event["ts"] - first} for event in timed]
    wall = exported.get("baseTimeNanoseconds", 0) / 1e9 + first / 1e6
    names = [event for event in events if event["ph"] == "M" and event["name"] == "thread_name"]
    return Profile.pack(rank, wall - wall_minus_monotonic(), names + timed)
