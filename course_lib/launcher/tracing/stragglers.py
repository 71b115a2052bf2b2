"""Find the rank that the others wait for, and why, with evidence.

There are two kinds of evidence. A collective ends when its last rank arrives, so that rank alone is responsible for the
time between the second-to-last arrival and its own. And if ranks send to each other, as in a pipeline, the others wait
for the rank that works longest. A busy machine makes ranks late, too: the OS reports how long a rank waited for a core,
and we subtract that.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from course_lib.launcher.tracing.recording import Collective
from course_lib.runtime.trace import Span

SHARE = 0.03  # of the time: a straggler costs at least that much more than any other rank
AHEAD_IN_ARRIVALS, AHEAD_IN_WORK = 2.0, 0.45  # and that many times more; twice as many on a busy machine
SLICE = 0.005  # seconds: on a busy machine, a scheduler slice of delay says nothing; on an idle one, a fifth of it
MIN_COLLECTIVES = 4  # with fewer, we draw no conclusion
WAITING = ("receive", "send", "communication")  # spans in which a rank waits for others

Samples = Sequence[tuple[float, float]]  # (time, seconds waited for a core up to then)


@dataclass(frozen=True)
class Arrival:
    """The last rank at one collective, and how long it came after the second-to-last."""

    last: int
    late: float
    core_wait: float  # seconds it waited for a core since the previous collective


@dataclass(frozen=True)
class Stragglers:
    """The arrivals at all collectives with at least two ranks, in order of time. Prints as a table with a verdict."""

    ranks: int
    arrivals: tuple[Arrival, ...]
    seconds: float  # from the first collective to the last
    core_wait: Mapping[int, float]  # seconds of that spent waiting for a core, by rank
    work: Mapping[int, float]  # seconds not spent waiting, by rank
    kinds: Mapping[int, Mapping[str, float]]  # seconds in each kind of span, by rank

    def late(self, rank: int) -> list[float]:
        """Return by how much this rank was late at each collective at which it arrived last."""
        return [arrival.late for arrival in self.arrivals if arrival.last == rank]

    @property
    def is_pipeline(self) -> bool:
        """Whether ranks wait for each other's messages. If so, their order decides who is last at a collective."""
        return any("receive" in of_rank for of_rank in self.kinds.values())

    @property
    def slowest(self) -> int | None:
        """The rank that the others wait for, or None if there is none or the machine explains the delay."""
        if len(self.arrivals) < MIN_COLLECTIVES or self.ranks < 2 or (self.is_pipeline and len(self.work) < self.ranks):
            return None
        busy = {rank for rank, waited in self.core_wait.items() if waited > 0.05 * self.seconds}
        own, ahead = dict(self.work), AHEAD_IN_WORK
        if not self.is_pipeline:
            ahead = AHEAD_IN_ARRIVALS
            for rank in range(self.ranks):
                noise = SLICE if rank in busy else SLICE / 5  # the threads that carry messages wait for a core, too
                delays = [max(0.0, one.late - one.core_wait - noise) for one in self.arrivals if one.last == rank]
                own[rank] = sum(sorted(delays)[:-2])  # the two worst may be the start and a hiccup
        first, second, *_ = sorted(own, key=lambda rank: own[rank], reverse=True)
        more = own[first] - own[second]
        enough = ahead * (2 if first in busy else 1) * own[second]
        return first if more > enough and self._matters(more) else None

    def _matters(self, seconds: float) -> bool:
        return seconds >= max(2 * SLICE, SHARE * self.seconds)

    def cause(self, rank: int) -> str:
        """Return the kind of span in which this rank most exceeds the others' median, or "" if there is none."""
        others = [kinds for other, kinds in self.kinds.items() if other != rank]
        longer = {
            kind: seconds - statistics.median(other.get(kind, 0.0) for other in others)
            for kind, seconds in self.kinds.get(rank, {}).items()
            if kind not in WAITING and others
        }
        kind = max(longer, key=lambda kind: longer[kind], default="")
        return kind if kind and self._matters(longer[kind]) else ""

    def verdict(self) -> str:
        """Return a sentence or two that say which rank is the straggler, and why."""
        if not self.arrivals:
            return "No collective of two ranks or more was recorded, so no rank waited for another."
        if len(self.arrivals) < MIN_COLLECTIVES:
            return f"Only {len(self.arrivals)} collectives were recorded: too few to name a straggler."
        if (rank := self.slowest) is None:
            return "No rank stands out."
        why = f" Its `{kind}` takes longer than the others'." if (kind := self.cause(rank)) else ""
        if not self.is_pipeline:
            late, seconds = self.late(rank), sum(self.late(rank))
            share = f", {seconds / self.seconds:.0%} of the time" if self.seconds > 0 else ""
            return (
                f"Rank {rank} is the straggler: last in {len(late)} of {len(self.arrivals)} collectives, "
                f"and the others waited {seconds:.3g} s for it alone{share}.{why}"
            )
        others = max(self.work[other] for other in range(self.ranks) if other != rank)
        return (
            f"Rank {rank} is the straggler: it worked for {self.work[rank]:.3g} s, and no other rank for more than "
            f"{others:.3g} s in the same time; they wait for what it sends.{why}"
        )

    def __str__(self) -> str:
        if not self.arrivals:
            return self.verdict()
        lines = ["rank  last in  late (median)  late (most)     in all  in line for a core"]
        for rank in range(self.ranks):
            late = self.late(rank)
            late_values = (statistics.median(late), max(late), sum(late)) if late else (None, None, None)
            values = (*late_values, self.core_wait.get(rank))
            shown = ["-" if value is None else f"{value * 1e3:,.2f} ms" for value in values]
            median, most, total, waited = shown
            lines.append(f"{rank:>4}  {len(late):>7}  {median:>13}  {most:>11}  {total:>9}  {waited:>18}")
        return "\n".join([*lines, "", self.verdict()])


def find_stragglers(
    ranks: int,
    collectives: Sequence[Collective],
    spans: Sequence[Span] = (),
    core_waits: Mapping[int, Samples] | None = None,
) -> Stragglers:
    """Find which rank arrived last at each collective, among the ranks whose record still has that collective."""
    by_key: dict[tuple[str, int], list[Collective]] = {}
    for collective in sorted(collectives, key=lambda collective: collective.start):
        by_key.setdefault(collective.key, []).append(collective)
    meetings = sorted((m for m in by_key.values() if len(m) > 1), key=lambda meeting: meeting[-1].start)
    begin, end = (min(meeting[0].start for meeting in meetings), meetings[-1][-1].start) if meetings else (0.0, 0.0)
    waits = {rank: sorted(samples) for rank, samples in (core_waits or {}).items() if samples}
    arrivals, previous = [], float("-inf")
    for *_, second, last in meetings:
        # With few samples we don't know when the rank waited for a core: then all of its wait so far counts.
        since = previous if len(waits.get(last.rank, ())) >= 20 else float("-inf")
        waited = _waited(waits.get(last.rank), since, last.start)
        arrivals.append(Arrival(last.rank, last.start - second.start, waited))
        previous = last.start
    waited_in_all = {rank: _waited(samples, begin, end) for rank, samples in waits.items()}
    return Stragglers(ranks, tuple(arrivals), end - begin, waited_in_all, *_work(spans, waits))


def _work(spans: Sequence[Span], waits: Mapping[int, Samples]) -> tuple[dict[int, float], dict[int, dict[str, float]]]:
    """Return each rank's seconds of work (not waiting for others or for a core), and its seconds in each kind of span.

    Both leave out the first fifth of the time, in which ranks connect.
    """
    first, end = min((span.start for span in spans), default=0.0), max((span.end for span in spans), default=0.0)
    begin = first + 0.2 * (end - first)
    kinds: dict[int, dict[str, float]] = {}
    for span in spans:
        if span.end > begin:
            start, of_rank = max(span.start, begin), kinds.setdefault(span.rank, {})
            seconds = span.end - start - _waited(waits.get(span.rank), start, span.end)
            of_rank[span.name] = of_rank.get(span.name, 0.0) + seconds
    work = {}
    for rank, of_rank in kinds.items():
        waited_for_others = sum(of_rank.get(kind, 0.0) for kind in WAITING)
        work[rank] = end - begin - _waited(waits.get(rank), begin, end) - waited_for_others
    return work, kinds


def _waited(samples: Samples | None, begin: float, end: float) -> float:
    """Return how long a rank waited for a core in this interval, interpolating linearly between samples."""
    if not samples:
        return 0.0
    times, waited = zip(*samples, strict=True)
    until_begin, until_end = np.interp([begin, end], times, waited)
    return max(0.0, float(until_end - until_begin))
