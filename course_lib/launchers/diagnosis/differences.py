"""Where ranks that should have made the same call did not: the first such place, and who differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod

from course_lib.launchers.diagnosis.call_log import ANYBODY, Call, Message, Record

# Over gloo; elsewhere an all_gather may have uneven parts. All-to-all has a rule of its own.
MUST_AGREE_ON_SHAPE = {
    *("all_reduce", "broadcast", "reduce", "all_gather", "_all_gather_base", "all_gather_single", "gather"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"),
}
Difference = Mapping[int, Call | Message]


def first_difference(records: Mapping[int, Record]) -> Difference | None:
    """The first collective or message on which ranks disagree, as each of them called it; None if they agree."""
    return _collectives(records) or _messages(records)


def odd_caller(difference: Difference) -> int | None:
    """The rank whose call differs from the majority's; None if there is no majority."""
    counts = Counter(map(_terms, difference.values()))
    (usual, most), *others = counts.most_common()
    if any(count == most for _, count in others):
        return None
    odd = [rank for rank, call in difference.items() if _terms(call) != usual]
    return min(odd) if odd else None


def _collectives(records: Mapping[int, Record]) -> Difference | None:
    meetings: dict[tuple[str, int], dict[int, Call]] = {}
    for rank, record in records.items():
        for call in record.calls:
            meetings.setdefault((call.group, call.number), {})[rank] = call
    for _, meeting in sorted(meetings.items(), key=lambda item: item[0][1]):
        if not _agree(meeting):
            return meeting
    return None


def _agree(meeting: Mapping[int, Call]) -> bool:
    calls = meeting.values()
    if len({_terms(call)[:3] for call in calls}) > 1:
        return False
    known = [call.root for call in calls if call.root is not None], [call.reduction for call in calls if call.reduction]
    return all(len(set(values)) <= 1 for values in known) and _splits_fit(meeting)


def _terms(call: Call | Message) -> tuple:
    """What the ranks of a group must agree on."""
    if isinstance(call, Message):
        return (call.dtype, prod(call.shape))
    sized = (call.dtype, call.shape) if call.op in MUST_AGREE_ON_SHAPE else ("", None)
    return (call.op, *sized, call.root, call.reduction)


def _splits_fit(meeting: Mapping[int, Call]) -> bool:
    """Of an all-to-all of all ranks: what each sends to each is what that one expects."""
    splits = [call.splits for _, call in sorted(meeting.items())]
    known = [each for each in splits if each and len(each[0]) == len(each[1]) == len(splits)]
    if len(known) < len(splits):
        return True  # equal parts, or not all have called
    return all(known[i][0][j] == known[j][1][i] for i in range(len(known)) for j in range(len(known)))


def _messages(records: Mapping[int, Record]) -> Difference | None:
    """A message that was sent as one thing and received as another."""
    received = {
        (m.peer, rank, m.group, m.tag, m.number): m
        for rank, record in records.items()
        for m in record.messages
        if m.kind == "recv" and ("recv", m.group, ANYBODY, m.tag) not in record.sent  # else they cannot be counted
    }
    for rank, record in records.items():
        for sent in record.messages:
            there = received.get((rank, sent.peer, sent.group, sent.tag, sent.number)) if sent.kind == "send" else None
            if there and _terms(there) != _terms(sent):
                return {rank: sent, sent.peer: there}
    return None
