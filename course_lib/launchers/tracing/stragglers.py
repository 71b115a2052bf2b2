"""Find the rank that the others wait for, and why, with evidence.

There are two kinds of evidence. A collective ends when its last rank arrives, so that rank alone is responsible for the
time between the second-to-last arrival and its own. And if ranks send to each other, as in a pipeline, the others wait
for the rank that works longest.

A busy machine makes ranks late, too. The OS reports how long a rank waited for a core, and we subtract that; the rest
is the rank's own delay.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from course_lib.launchers.tracing.recording import Collective
from course_lib.launchers.tracing.trace_file import CORE_WAIT, Event
from course_lib.trace import Span

MIN_COLLECTIVES = 4  # with fewer collectives, we draw no conclusion
IGNORED_DELAYS = 2  # how many of a rank's worst delays we ignore: the first ones of a run, or a hiccup
JITTER, SLICE = 0.001, 0.005  # seconds of delay we ignore, on an idle machine and on a busy one (a scheduler slice)
BUSY = 0.05  # fraction of the time: if a rank waits longer for a core, the machine is busy
MANY_SAMPLES = 20  # with this many samples of a rank's wait for a core, we know when it waited
WARM_UP = 0.2  # fraction of the time covered by spans that is not counted as work
MIN_DELAY = 0.01  # seconds in total: a smaller delay is not worth naming
MIN_SHARE = 0.03  # fraction of the time from the first collective to the last
FAR_AHEAD = 3.0  # a straggler costs at least this many times as much as any other rank
LONGER, LONGER_IF_BUSY = 0.35, 0.9  # a straggler works longer than any other rank by at least this fraction
WAITING = ("receive", "send", "communication")  # spans in which a rank waits for others

Samples = Sequence[tuple[float, float]]  # (time, seconds waited for a core up to then)


@dataclass(frozen=True)
class Arrival:
    """One collective: which rank arrived last, and how long after the second-to-last and after the first."""

    op: str
    group: str
    number: int
    last: int
    late: float
    after_first: float
    core_wait: float = 0.0  # seconds it waited for a core since the previous collective


@dataclass(frozen=True)
class Stragglers:
    """The arrivals at all collectives with at least two ranks, ordered by time.

    Prints as a table: for each rank, how often it arrived last, what that cost, and how long it waited for a core.
    """

    ranks: int
    arrivals: tuple[Arrival, ...]
    seconds: float  # from the first collective to the last
    core_wait: Mapping[int, float] = field(default_factory=dict)  # seconds of that spent waiting for a core, by rank
    work: Mapping[int, float] = field(default_factory=dict)  # seconds not spent waiting, by rank
    kinds: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # seconds in each kind of span, by rank

    def cost(self, rank: int) -> float:
        """Return the seconds that would be saved if this rank never arrived later than the second-to-last one."""
        return sum(arrival.late for arrival in self.arrivals if arrival.last == rank)

    def own_cost(self, rank: int) -> float:
        """Return the cost without the delays that the machine explains and without the rank's two worst arrivals.

        The machine explains the seconds that the rank waited for a core before it arrived and, if it is busy, a few
        milliseconds more, because the threads that carry the rank's messages wait for a core, too.
        """
        noise = SLICE if self._is_busy(rank) else JITTER
        late = [max(0.0, arrival.late - arrival.core_wait - noise) for arrival in self.arrivals if arrival.last == rank]
        return sum(sorted(late)[:-IGNORED_DELAYS])

    def times_last(self, rank: int) -> int:
        """Return the number of collectives at which this rank arrived last."""
        return sum(arrival.last == rank for arrival in self.arrivals)

    @property
    def slowest(self) -> int | None:
        """The rank that the others wait for, or None if there is none or the machine explains the delay."""
        if len(self.arrivals) < MIN_COLLECTIVES or self.ranks < 2:
            return None
        return self._longest() if self.is_pipeline else self._latest()

    @property
    def is_pipeline(self) -> bool:
        """Whether ranks wait for each other's messages. If so, their order decides who is last at a collective."""
        return any("receive" in of_rank for of_rank in self.kinds.values())

    def _latest(self) -> int | None:
        """Return the rank whose late arrivals cost the most, if they cost far more than any other rank's."""
        first, *others = sorted(range(self.ranks), key=self.own_cost, reverse=True)
        cost = self.own_cost(first)
        stands_out = all(cost >= FAR_AHEAD * self.own_cost(other) for other in others)
        return first if stands_out and self._is_worth(cost) else None

    def _longest(self) -> int | None:
        """Return the rank that works longest, if it works far longer than any other."""
        if len(self.work) < self.ranks:
            return None
        first, second, *_ = sorted(self.work, key=lambda rank: self.work[rank], reverse=True)
        more = self.work[first] - self.work[second]
        share = LONGER_IF_BUSY if self._is_busy(first) else LONGER
        return first if more > share * self.work[second] and self._is_worth(more) else None

    def _is_busy(self, rank: int) -> bool:
        return self.core_wait.get(rank, 0.0) > BUSY * self.seconds

    def _is_worth(self, seconds: float) -> bool:
        return seconds >= max(MIN_DELAY, MIN_SHARE * self.seconds)

    def cause(self, rank: int) -> str:
        """Return the kind of span in which this rank most exceeds the others' median, or "" if there is none."""
        longer = {
            kind: seconds
            - statistics.median([self.kinds[other].get(kind, 0.0) for other in self.kinds if other != rank])
            for kind, seconds in self.kinds.get(rank, {}).items()
            if kind not in WAITING and len(self.kinds) > 1
        }
        kind = max(longer, key=lambda kind: longer[kind], default="")
        return kind if kind and self._is_worth(longer[kind]) else ""

    def verdict(self) -> str:
        """Return a sentence or two that say which rank is the straggler, and why."""
        if not self.arrivals:
            return "No collective of two ranks or more was recorded, so no rank waited for another."
        if len(self.arrivals) < MIN_COLLECTIVES:
            return f"Only {len(self.arrivals)} collectives were recorded: too few to name a straggler."
        rank = self.slowest
        if rank is None:
            return f"No rank stands out.{self._busy()}"
        kind = self.cause(rank)
        why = f" Its `{kind}` takes longer than the others'." if kind else ""
        if not self.is_pipeline:
            share = f", {self.cost(rank) / self.seconds:.0%} of the time" if self.seconds > 0 else ""
            return (
                f"Rank {rank} is the straggler: last in {self.times_last(rank)} of {len(self.arrivals)} collectives, "
                f"and the others waited {self.cost(rank):.3g} s for it alone{share}.{why}"
            )
        others = max(self.work[other] for other in range(self.ranks) if other != rank)
        return (
            f"Rank {rank} is the straggler: it worked for {self.work[rank]:.3g} s, and no other rank for more than "
            f"{others:.3g} s in the same time; they wait for what it sends.{why}"
        )

    def _busy(self) -> str:
        """Return a sentence about the rank that was late because the machine is busy, or ""."""
        first = max(range(self.ranks), key=self.cost)
        late, waited = self.cost(first), self.core_wait.get(first, 0.0)
        if self.is_pipeline or not self._is_worth(late) or late > 2 * waited:
            return ""
        return (
            f" Rank {first} was late by {late:.3g} s in total, but it waited {waited:.3g} s for a core: this "
            "machine is busy."
        )

    def __str__(self) -> str:
        if not self.arrivals:
            return self.verdict()
        head = f"{'rank':>4}  {'last in':>7}  {'late (median)':>13}  {'late (most)':>11}  {'in all':>9}"
        lines = [f"{head}  {'in line for a core':>18}"]
        for rank in range(self.ranks):
            late = [arrival.late for arrival in self.arrivals if arrival.last == rank]
            if late:
                times = f"{_ms(statistics.median(late)):>13}  {_ms(max(late)):>11}  {_ms(sum(late)):>9}"
            else:
                times = f"{'-':>13}  {'-':>11}  {'-':>9}"
            waited = _ms(self.core_wait[rank]) if rank in self.core_wait else "-"
            lines.append(f"{rank:>4}  {len(late):>7}  {times}  {waited:>18}")
        return "\n".join([*lines, "", self.verdict()])


def find_stragglers(
    ranks: int,
    collectives: Sequence[Collective],
    spans: Sequence[Span] = (),
    core_waits: Mapping[int, Samples] | None = None,
) -> Stragglers:
    """Find which rank arrived last at each collective, among the ranks whose record still has that collective."""
    by_key: dict[tuple[str, int], list[Collective]] = {}
    for collective in collectives:
        by_key.setdefault(collective.key, []).append(collective)
    by_start = attrgetter("start")
    meetings = [sorted(meeting, key=by_start) for meeting in by_key.values() if len(meeting) > 1]
    meetings.sort(key=lambda meeting: meeting[-1].start)
    begin, end = (min(meeting[0].start for meeting in meetings), meetings[-1][-1].start) if meetings else (0.0, 0.0)
    waits = {rank: CoreWait(sorted(samples)) for rank, samples in (core_waits or {}).items() if samples}
    waited = {rank: samples.between(begin, end) for rank, samples in waits.items()}
    return Stragglers(ranks, _arrivals(meetings, waits), end - begin, waited, *_work(spans, waits))


def _arrivals(meetings: Sequence[Sequence[Collective]], core_waits: Mapping[int, CoreWait]) -> tuple[Arrival, ...]:
    """Return who arrived last at each collective. With few samples, we count all of its wait for a core so far."""
    arrivals, previous_start = [], float("-inf")
    for meeting in meetings:
        first, second, last = meeting[0], meeting[-2], meeting[-1]
        samples, seconds = core_waits.get(last.rank), 0.0
        if samples is not None:
            since = previous_start if len(samples.samples) >= MANY_SAMPLES else float("-inf")
            seconds = samples.between(since, last.start)
        arrivals.append(
            Arrival(
                last.op,
                last.group,
                last.number,
                last.rank,
                last.start - second.start,
                last.start - first.start,
                seconds,
            )
        )
        previous_start = last.start
    return tuple(arrivals)


def _work(
    spans: Sequence[Span], core_waits: Mapping[int, CoreWait]
) -> tuple[dict[int, float], dict[int, dict[str, float]]]:
    """Return each rank's seconds of work (not waiting for others or for a core), and its seconds in each kind of span.

    Both cover the time from the first span to the last, except the beginning, when ranks connect.
    """
    first, end = min((span.start for span in spans), default=0.0), max((span.end for span in spans), default=0.0)
    begin = first + WARM_UP * (end - first)
    spans = [span for span in spans if span.end > begin]
    no_wait = CoreWait([(0.0, 0.0)])
    kinds: dict[int, dict[str, float]] = {}
    waits: dict[int, float] = {}
    for span in spans:
        start, stop = max(span.start, begin), min(span.end, end)
        seconds = stop - start - core_waits.get(span.rank, no_wait).between(start, stop)
        kinds_of_rank = kinds.setdefault(span.rank, {})
        kinds_of_rank[span.name] = kinds_of_rank.get(span.name, 0.0) + seconds
        waits[span.rank] = waits.get(span.rank, 0.0) + (seconds if span.name in WAITING else 0.0)
    work = {rank: end - begin - core_waits.get(rank, no_wait).between(begin, end) - waits[rank] for rank in kinds}
    return work, kinds


@dataclass(frozen=True)
class CoreWait:
    """Samples of how long a rank had waited for a core, ordered by time."""

    samples: Samples

    def between(self, begin: float, end: float) -> float:
        """Return how long the rank waited in this interval, interpolating linearly between samples."""
        return max(0.0, self._at(end) - self._at(begin))

    def _at(self, moment: float) -> float:
        place = bisect.bisect_right(self.samples, (moment, math.inf))
        if place in (0, len(self.samples)):
            return self.samples[min(place, len(self.samples) - 1)][1]
        (t0, w0), (t1, w1) = self.samples[place - 1], self.samples[place]
        return w0 + (w1 - w0) * (moment - t0) / (t1 - t0)


def collectives_in(events: Sequence[Event]) -> tuple[int, list[Collective]]:
    """Return the number of ranks in a trace, and its collectives."""
    ranks = sum(event["ph"] == "M" and event["name"] == "process_name" for event in events)
    collectives = [event for event in events if event.get("cat") == "collective"]
    return ranks, [
        Collective(
            event["pid"], event["args"]["group"], event["args"]["number"], event["name"], float(event["ts"]) / 1e6
        )
        for event in collectives
    ]


def core_waits_in(events: Sequence[Event]) -> dict[int, list[tuple[float, float]]]:
    """Return the samples of how long each rank had waited for a core, by rank."""
    samples: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "C" and event["name"] == CORE_WAIT:
            samples.setdefault(event["pid"], []).append((float(event["ts"]) / 1e6, float(event["args"]["seconds"])))
    return samples


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"
