"""Ranks that will wait for ever, known without waiting for a time-out.

A rank that waits needs something of others: that they join its collective, or send what it receives. If one of them
has returned without doing so, or waits itself, for somebody who waits, it will never come. Counters only grow, so what
two ranks say need not be of the same moment: whoever needs the fifth message of a rank that has sent four is still
waiting.

What is not certain is not claimed: a rank with other threads of Python may yet be helped by them, and a broadcast
needs its root, but not every other member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.launchers.diagnosis.call_log import ANYBODY, Record, Wait
from course_lib.launchers.diagnosis.errors import name_ranks
from course_lib.launchers.diagnosis.stacks import Where

NEEDS_ROOT = ("broadcast", "scatter")
ROOT_NEEDS_ALL = ("gather", "reduce")
ANSWER = {"send": "recv", "recv": "send"}


@dataclass(frozen=True)
class Deadlock:
    """`needs[rank]`: the ranks for which it waits in vain; `returned`: those of them that are gone."""

    waits: Mapping[int, Wait]
    needs: Mapping[int, frozenset[int]]
    returned: frozenset[int]

    def describe(self) -> str:
        """Who waits for whom, as a sentence without its end."""
        if self.returned:
            groups: dict[tuple[str, frozenset[int]], list[int]] = {}
            for rank, needed in sorted(self.needs.items()):
                if missing := needed & self.returned:
                    groups.setdefault((self.waits[rank].op, missing), []).append(rank)
            return "; ".join(_in_vain(ranks, op, sorted(missing)) for (op, missing), ranks in groups.items())
        return ", ".join(f"rank {rank} waits for {name_ranks(sorted(self.needs[rank]))}" for rank in self._circle())

    def culprits(self, ranks: int) -> tuple[int, ...]:
        """Those that have returned too early; or, if they are the most, those that make a call too many."""
        too_early = 2 * len(self.returned) <= ranks
        return tuple(sorted(self.returned if too_early or not self.returned else self.needs))

    def most_awaited(self) -> tuple[int, ...]:
        """The one for whom most others wait, if there is one."""
        counts = Counter(rank for needed in self.needs.values() for rank in needed).most_common(2)
        stands_out = len(counts) == 1 or counts[0][1] > counts[1][1]
        return (counts[0][0],) if stands_out else ()

    def _circle(self) -> list[int]:
        """Ranks that wait for each other, in that order."""
        path = [min(self.needs)]
        while True:
            following = min(self.needs[path[-1]] & self.needs.keys())
            if following in path:
                return path[path.index(following) :]
            path.append(following)


def find_deadlock(records: Mapping[int, Record], returned: set[int]) -> Deadlock | None:
    """A set of ranks that can never go on, if there is one."""
    gone = {rank for rank in returned if rank in records and records[rank].alone}
    needs = {
        rank: needed
        for rank, record in records.items()
        if rank not in returned
        and record.wait
        and record.alone
        and (needed := _needs(rank, record.wait, records, gone))
    }
    while True:
        hopeless = {rank: needed & (needs.keys() | gone) for rank, needed in needs.items()}
        remaining = {rank: needed for rank, needed in hopeless.items() if needed}
        if len(remaining) == len(needs):
            break
        needs = remaining
    if not remaining:
        return None
    waits = {rank: wait for rank in remaining if (wait := records[rank].wait)}
    missing = frozenset().union(*remaining.values()) & gone
    return Deadlock(waits, {rank: frozenset(needed) for rank, needed in remaining.items()}, frozenset(missing))


def awaited_ranks(records: Mapping[int, Record], where: Mapping[int, Where]) -> tuple[int, ...]:
    """The few for whom others wait and who wait for nobody: they hold the rest up, for now or for ever."""
    waiting = {rank for rank, state in where.items() if state.doing == "waiting"}
    known = {rank: records.get(rank, Record()) for rank in where}
    needed: set[int] = set()
    for rank in waiting:
        if wait := known[rank].wait:
            needed |= _needs(rank, wait, known, gone=set(where) - waiting)
    awaited = tuple(sorted(needed - waiting))
    return awaited if 2 * len(awaited) < len(where) else ()


def _in_vain(ranks: list[int], op: str, missing: list[int]) -> str:
    wait, have = "waits" if len(ranks) == 1 else "wait", "has" if len(missing) == 1 else "have"
    return f"{name_ranks(ranks)} {wait} in {op} for {name_ranks(missing)}, which {have} returned"


def _needs(rank: int, wait: Wait, records: Mapping[int, Record], gone: set[int]) -> set[int]:
    """The ranks that must still do something, each of them, before this wait can end.

    Of those that have returned, any member counts: a broadcast that it has not joined does not end on every rank.
    """
    if wait.peer is not None:
        other = records.get(wait.peer)
        line = (ANSWER[wait.op], wait.group, rank, wait.tag)
        if other is None or (ANSWER[wait.op], wait.group, ANYBODY, wait.tag) in other.sent:
            return set()
        return {wait.peer} if other.sent.get(line, 0) < wait.number else set()
    wanted = set(wait.members)
    if wait.op in NEEDS_ROOT:
        wanted &= {wait.root, *gone}
    elif wait.op in ROOT_NEEDS_ALL and wait.root != rank:
        wanted &= gone
    return {
        other for other in wanted - {rank} if other in records and records[other].begun.get(wait.group, 0) < wait.number
    }
