"""Why ranks wait for ever, told from the calls that they wait in."""

from __future__ import annotations

from course_lib.checks.inside.observe import Outcome
from course_lib.launchers.diagnosis.errors import name_ranks

FROM_WHOM = "Every receive needs one send, from the rank it names."
MESSAGES = ("send", "recv", "isend", "irecv", "batch_isend_irecv")


def explain_hang(outcome: Outcome) -> str:
    """The cause, and what would mend it. Only what the ranks' states bear out: they are shown above it."""
    text = _explain(outcome)
    return text[:1].upper() + text[1:]


def _explain(outcome: Outcome) -> str:
    states = [(doing, collective if collective.isidentifier() else "") for doing, collective, _ in outcome.states]
    waiting = {rank: call for rank, (doing, call) in enumerate(states) if doing == "waiting"}
    returned = [rank for rank, (doing, _) in enumerate(states) if doing == "returned"]
    running = [rank for rank, (doing, _) in enumerate(states) if doing in ("running", "computing")]
    calls = set(waiting.values())
    if not waiting:
        return "No rank waits for another: this is a loop that does not end, or work that takes very long."
    if running:
        be, rest = ("is", "the others") if len(running) == 1 else ("are", "others")
        return (
            f"{name_ranks(running)} {be} still at work while {rest} wait: a loop that does not end, or one that goes "
            "round more often than the others'."
        )
    if calls <= {"new_group", "new_subgroups"}:
        return (
            "A process group is made by all ranks together, also by those that will not be in it: every rank calls "
            "`new_group`, for every group, in the same order."
        )
    if len(waiting) == len(states) and len(calls) == 1 and calls <= set(MESSAGES):
        return _all_alike(next(iter(calls)))
    if calls <= set(MESSAGES):
        return _unanswered(waiting, returned)
    return _not_all_there(waiting, returned, outcome)


def _all_alike(call: str) -> str:
    if call in ("send", "isend"):
        return (
            "Every rank waits in its send: a send may wait until somebody receives the message, and no rank gets as "
            "far as its receive. Begin the send without waiting (`dist.isend`), receive, and wait for it at the end."
        )
    return (
        "Every rank waits for a message, and nobody has sent it yet. Somebody must send first: begin the send "
        "(`dist.isend`) before the receive."
    )


def _unanswered(waiting: dict[int, str], returned: list[int]) -> str:
    sends = [rank for rank, call in waiting.items() if "send" in call]
    receives = [rank for rank, call in waiting.items() if "send" not in call]
    parts = []
    if receives:
        parts.append(f"{_ranks(receives, 'waits', 'wait')} for a message that nobody sends")
    if sends:
        parts.append(f"{_ranks(sends, 'waits', 'wait')} for somebody to receive a message")
    text = " and ".join(parts)
    gone = f"; {_ranks(returned, 'has', 'have')} returned" if returned else ""
    rule = "Every send needs one receive, on the rank it is meant for." if sends else FROM_WHOM
    return f"{text}{gone}. {rule}"


def _not_all_there(waiting: dict[int, str], returned: list[int], outcome: Outcome) -> str:
    calls = sorted({call for call in waiting.values() if call})
    if returned:
        called = " or ".join(calls) or "a collective"
        return (
            f"{_ranks(returned, 'has', 'have')} returned, and {_ranks(sorted(waiting), 'waits', 'wait')} in {called} "
            "for a call that will not come. Every rank of a group makes every call, equally often: look for an `if`, a "
            "loop or a `return` that depends on what only one rank knows. (A rank that has nothing to add makes the "
            "call all the same.)"
        )
    groups = {whom for doing, _, whom in outcome.states if doing == "waiting"}
    if len(calls) == 1 and len(groups) == 1:
        return f"All ranks are in {calls[0]}, and not in the same one: some have called it more often than others."
    return (
        "The ranks wait in different calls, or in different groups, each for the others. All ranks of a group make the "
        "same calls in the same order."
    )


def _ranks(ranks: list[int], one: str, many: str) -> str:
    return f"{name_ranks(ranks)} {one if len(ranks) == 1 else many}"
