"""Detect ranks that will wait forever, without waiting for a timeout, and ranks that made different calls.

A waiting rank needs something from other ranks: they must join its collective, or send what it receives. If one of
them has returned without doing so, or is itself waiting for a rank that is stuck, it never will. Counters only grow,
so two ranks' records need not be from the same moment: a rank that needs the fifth message from a rank that has sent
four is still waiting.

We claim only what is certain: a rank's other Python threads might still unblock it, and a broadcast needs its root,
but not every other member.

If ranks should have made the same call and did not, `first_difference` finds where, and `odd_caller` which rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from course_lib.launcher.hangs.errors import name_ranks
from course_lib.launcher.hangs.record import ANYBODY, LoggedCall, LoggedMessage, RankRecord, Wait
from course_lib.launcher.hangs.stacks import Where

# Over gloo; other backends allow uneven parts in an all_gather. `_splits_fit` checks all-to-all.
MUST_AGREE_ON_SHAPE = {
    *("all_reduce", "broadcast", "reduce", "all_gather", "_all_gather_base", "all_gather_single", "gather"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"),
}
Difference = Mapping[int, LoggedCall | LoggedMessage]


NEEDS_ROOT = ("broadcast", "scatter")
ROOT_NEEDS_ALL = ("gather", "reduce")
ANSWER = {"send": "recv", "recv": "send"}


@dataclass(frozen=True)
class Deadlock:
    """A deadlock: `needs[rank]` are the ranks it waits for in vain; `returned` are the ones that have returned."""

    waits: Mapping[int, Wait]
    needs: Mapping[int, frozenset[int]]
    returned: frozenset[int]

    def describe(self, idle: Collection[int] = ()) -> str:
        """Return who waits for whom, as a sentence without a period. `idle` are ranks that do not run this cell."""
        if not self.returned:  # then there is a circle: ranks that each wait for the next one, the last for the first
            path = [min(self.needs)]
            while (following := min(self.needs[path[-1]] & self.needs.keys())) not in path:
                path.append(following)
            circle = path[path.index(following) :]
            return ", ".join(f"rank {rank} waits for {name_ranks(sorted(self.needs[rank]))}" for rank in circle)
        groups: dict[tuple[str, frozenset[int]], list[int]] = {}
        for rank, needed in sorted(self.needs.items()):
            if missing := needed & self.returned:
                groups.setdefault((self.waits[rank].op, missing), []).append(rank)
        sentences = []
        for (op, missing), ranks in groups.items():
            verb, is_one = "waits" if len(ranks) == 1 else "wait", len(missing) == 1
            why = f"{'has' if is_one else 'have'} returned"
            if missing <= set(idle):
                why = f"{'does' if is_one else 'do'} not run this cell"
            sentences.append(f"{name_ranks(ranks)} {verb} in {op} for {name_ranks(sorted(missing))}, which {why}")
        return "; ".join(sentences)

    def culprits(self, ranks: int) -> tuple[int, ...]:
        """Return the ranks that returned too early; if those are the majority, the ranks that made an extra call."""
        too_early = 2 * len(self.returned) <= ranks
        return tuple(sorted(self.returned if too_early or not self.returned else self.needs))

    def most_awaited(self) -> tuple[int, ...]:
        """Return the rank that most others wait for, or nothing if there is a tie."""
        counts = Counter(rank for needed in self.needs.values() for rank in needed).most_common(2)
        stands_out = len(counts) == 1 or counts[0][1] > counts[1][1]
        return (counts[0][0],) if stands_out else ()


def find_deadlock(records: Mapping[int, RankRecord], returned: set[int]) -> Deadlock | None:
    """Return a set of ranks that can never continue, or None if there is none."""
    finished = {rank for rank in returned if rank in records and records[rank].alone}
    waits: dict[int, Wait] = {}
    for rank, record in records.items():
        if rank not in returned and record.alone and (wait := record.wait):
            channel = (wait.op, wait.group, wait.peer or 0, wait.tag)
            reached = record.begun.get(wait.group, 0) if wait.peer is None else record.posted.get(channel, 0)
            if reached >= wait.number:  # otherwise it moved on while we recorded it
                waits[rank] = wait
    needs = {rank: _needs(rank, wait, records, finished) for rank, wait in waits.items()}
    while True:
        remaining = {rank: met for rank, needed in needs.items() if (met := needed & (needs.keys() | finished))}
        if len(remaining) == len(needs):
            break
        needs = remaining
    if not remaining:
        return None
    hopeless = {rank: frozenset(needed) for rank, needed in remaining.items()}
    return Deadlock(waits, hopeless, frozenset().union(*hopeless.values()) & finished)


def awaited_ranks(records: Mapping[int, RankRecord], states: Mapping[int, Where]) -> tuple[int, ...]:
    """Return the ranks that hold up the others: awaited, but not waiting. Returns () if they are not a minority."""
    waiting = {rank for rank, state in states.items() if state.doing == "waiting"}
    all_records = {rank: records.get(rank, RankRecord()) for rank in states}
    needed: set[int] = set()
    for rank in waiting:
        if wait := all_records[rank].wait:
            needed |= _needs(rank, wait, all_records, finished=set(states) - waiting)
    awaited = tuple(sorted(needed - waiting))
    return awaited if 2 * len(awaited) < len(states) else ()


def _needs(rank: int, wait: Wait, records: Mapping[int, RankRecord], finished: set[int]) -> set[int]:
    """Return the ranks that must all still do something before this wait can end.

    Any member that has returned counts: a broadcast that it did not join does not end on every rank.
    """
    if wait.peer is not None:
        other = records.get(wait.peer)
        channel = (ANSWER[wait.op], wait.group, rank, wait.tag)
        if other is None or (ANSWER[wait.op], wait.group, ANYBODY, wait.tag) in other.posted:
            return set()
        return {wait.peer} if other.posted.get(channel, 0) < wait.number else set()
    members = set(wait.members)
    if wait.op in NEEDS_ROOT:
        members &= {wait.root, *finished}
    elif wait.op in ROOT_NEEDS_ALL and wait.root != rank:
        members &= finished
    others = (members - {rank}) & records.keys()
    return {other for other in others if records[other].begun.get(wait.group, 0) < wait.number}


def first_difference(records: Mapping[int, RankRecord]) -> Difference | None:
    """Return the first collective or message on which ranks disagree, as each rank called it, or None if they agree."""
    meetings: dict[tuple[int, str], dict[int, LoggedCall]] = {}
    for rank, record in records.items():
        for call in record.calls:
            meetings.setdefault((call.number, call.group), {})[rank] = call
    for _, meeting in sorted(meetings.items(), key=lambda item: item[0][0]):
        calls = meeting.values()
        same = len({_terms(call)[:3] for call in calls}) == 1
        # A root or a reduction that we don't know agrees with any other.
        roots = {call.root for call in calls if call.root is not None}
        reductions = {call.reduction for call in calls if call.reduction}
        if not same or len(roots) > 1 or len(reductions) > 1 or not _splits_fit(meeting):
            return meeting
    return _unlike_messages(records)


def odd_caller(difference: Difference) -> int | None:
    """Return the rank whose call differs from the majority's, or None if there is no majority."""
    counts = Counter(map(_terms, difference.values()))
    (usual, most), *others = counts.most_common()
    if any(count == most for _, count in others):
        return None
    odd = [rank for rank, call in difference.items() if _terms(call) != usual]
    return min(odd) if odd else None


def _terms(call: LoggedCall | LoggedMessage) -> tuple:
    """Return the parts of a call that the ranks of a group must agree on."""
    if isinstance(call, LoggedMessage):
        return (call.dtype, prod(call.shape))
    sized = (call.dtype, call.shape) if call.op in MUST_AGREE_ON_SHAPE else ("", None)
    return (call.op, *sized, call.root, call.reduction)


def _splits_fit(meeting: Mapping[int, LoggedCall]) -> bool:
    """Return whether, in an all-to-all, each rank sends to every other rank as much as that rank expects."""
    splits = [call.splits for _, call in sorted(meeting.items())]
    called = [split for split in splits if split and len(split[0]) == len(split[1]) == len(splits)]
    if len(called) < len(splits):
        return True  # equal parts, or some ranks have not called it yet
    return all(called[i][0][j] == called[j][1][i] for i in range(len(called)) for j in range(len(called)))


def _unlike_messages(records: Mapping[int, RankRecord]) -> Difference | None:
    """Return the first message whose receiver expects a different dtype or size, as each side called it."""
    receives = {
        (m.peer, rank, m.group, m.tag, m.number): m
        for rank, record in records.items()
        for m in record.messages
        if m.kind == "recv" and ("recv", m.group, ANYBODY, m.tag) not in record.posted  # else numbers don't match up
    }
    for rank, record in records.items():
        for send in (message for message in record.messages if message.kind == "send"):
            receive = receives.get((rank, send.peer, send.group, send.tag, send.number))
            if receive and _terms(receive) != _terms(send):
                return {rank: send, send.peer: receive}
    return None
