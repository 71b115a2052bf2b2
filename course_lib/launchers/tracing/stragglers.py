"""Who comes last: per collective, which rank the others waited for, and how long.

A collective ends when its last rank has come. What that rank alone costs is the time between its coming and that of
the one before it: if it had been as quick, everybody would have gone on so much earlier.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.launchers.tracing.events import Collective
from course_lib.launchers.tracing.trace_file import Event

MOST_OF_THE_TIME = 0.6  # of the collectives: so often is a straggler last
FAR_AHEAD = 3.0  # times as much as any other rank costs, a straggler does
WORTH_NAMING = 0.02  # of the time from the first collective to the last


@dataclass(frozen=True)
class Arrival:
    """One collective: who came last, and how long after the one before, and after the first."""

    op: str
    group: str
    number: int
    last: int
    late: float
    after_first: float


@dataclass(frozen=True)
class Stragglers:
    """The arrivals of all collectives that at least two ranks took part in, in order of time.

    Printed, it is a table: for each rank, how often it came last, and what that cost.
    """

    ranks: int
    arrivals: tuple[Arrival, ...]
    seconds: float  # from the first collective to the last

    def cost(self, rank: int) -> float:
        """Seconds that all would have saved if this rank had never come later than the one before it."""
        return sum(one.late for one in self.arrivals if one.last == rank)

    def times_last(self, rank: int) -> int:
        """In how many collectives this rank was the last."""
        return sum(one.last == rank for one in self.arrivals)

    @property
    def slowest(self) -> int | None:
        """The rank that the others wait for most of the time, if there is one."""
        if not self.arrivals:
            return None
        first, *others = sorted(range(self.ranks), key=self.cost, reverse=True)
        cost = self.cost(first)
        stands_out = all(cost >= FAR_AHEAD * self.cost(other) for other in others)
        often = self.times_last(first) >= MOST_OF_THE_TIME * len(self.arrivals)
        return first if stands_out and often and cost > WORTH_NAMING * self.seconds else None

    def verdict(self) -> str:
        """In a sentence: who is the straggler."""
        if not self.arrivals:
            return "No collective of two ranks or more was recorded: there is nobody to wait for."
        if self.slowest is None:
            return "No rank stands out."
        rank, count = self.slowest, len(self.arrivals)
        share = f", {self.cost(rank) / self.seconds:.0%} of the time" if self.seconds > 0 else ""
        return (
            f"Rank {rank} is the straggler: last in {self.times_last(rank)} of {count} collectives, and the others "
            f"waited {self.cost(rank):.3g} s for it alone{share}."
        )

    def __str__(self) -> str:
        if not self.arrivals:
            return self.verdict()
        lines = [f"{'rank':>4}  {'last in':>7}  {'late (median)':>13}  {'late (most)':>11}  {'in all':>9}"]
        for rank in range(self.ranks):
            late = [one.late for one in self.arrivals if one.last == rank]
            if late:
                times = f"{_ms(statistics.median(late)):>13}  {_ms(max(late)):>11}  {_ms(sum(late)):>9}"
            else:
                times = f"{'-':>13}  {'-':>11}  {'-':>9}"
            lines.append(f"{rank:>4}  {len(late):>7}  {times}")
        return "\n".join([*lines, "", self.verdict()])


def find_stragglers(ranks: int, collectives: Sequence[Collective]) -> Stragglers:
    """Who came last to each collective. One that some rank's record has lost is judged by those who have it."""
    by_key: dict[tuple[str, int], list[Collective]] = {}
    for one in collectives:
        by_key.setdefault(one.key, []).append(one)
    met = [sorted(each, key=lambda one: one.start) for each in by_key.values() if len(each) > 1]
    met.sort(key=lambda each: each[-1].start)
    arrivals = tuple(
        Arrival(last.op, last.group, last.number, last.rank, last.start - before.start, last.start - earliest[0].start)
        for *earliest, before, last in ((each[0], *each[-2:]) for each in met)
    )
    seconds = met[-1][-1].start - met[0][0].start if met else 0.0
    return Stragglers(ranks, arrivals, seconds)


def collectives_in(events: Sequence[Event]) -> tuple[int, list[Collective]]:
    """How many ranks a trace is of, and the collectives in it."""
    ranks = sum(event["ph"] == "M" and event["name"] == "process_name" for event in events)
    found = [event for event in events if event.get("cat") == "collective"]
    return ranks, [
        Collective(
            event["pid"], event["args"]["group"], event["args"]["number"], event["name"], float(event["ts"]) / 1e6
        )
        for event in found
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"
