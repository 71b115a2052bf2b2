"""Turn what an answer did into a report for its author, with an explanation of a hang."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from course_lib.checks.exercise import Case, Cost, Exercise, idea
from course_lib.checks.inside.observe import Outcome
from course_lib.checks.inside.transport import CHANGED, NEVER, USED
from course_lib.checks.report import TOO_MUCH, Finding, Report, table_of
from course_lib.launcher.hangs.errors import name_ranks

NOT_ATTEMPTED = "NotImplementedError"
FROM_WHOM = "Every receive needs one send, from the rank it names."
MESSAGES = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
IN_OTHERS = "Other cases that fail show why. "
IN_SOME = "This case doesn't show why; others that fail suggest this cause. "
NEW_GROUPS = (
    "All ranks create a process group together, even those that will not be in it: every rank calls `new_group`, for "
    "every group, in the same order."
)
OWN_GROUPS = (
    " If you create the groups yourself: every rank calls `new_group` for every group, in the same order, even for "
    "those it is not in."
)
UNPROVEN = "A single case can't prove it, but this may be the cause. "
REMEMBERS = (
    "By itself, this call gives the right result; after other calls in the same process, it gives a wrong one. So your "
    "function keeps state between calls: in a global variable, in an attribute, in a cache, or in a "
    "default argument such as `seen={}`, which is created only once. Create what a call needs inside the function."
)
MOST_TRIED = 4  # further cases to try, to see whether a second one shows the same mistake
IN_FLIGHT = {
    NEVER: "You begin a call and never wait for it. `isend`, `irecv` and a collective with `async_op=True` return at "
    "once, before anything has arrived: your tensor holds the result only after `wait()`, and a send may not even "
    "have left. Keep the handle that each call returns, and call `wait()` on every one of them.",
    CHANGED: "You change a tensor while a call is still using it: which numbers travel, and which are in the tensor "
    "afterwards, is a matter of luck. Between the call and `wait()`, leave the tensor alone: wait first, or work on "
    "a copy.",
    USED: "A tensor is used before it is filled. `irecv` and a collective with `async_op=True` return at once; the "
    "tensor holds the result only after `wait()`. Here, it holds nan until then. Call `wait()` before you compute with "
    "it or pass it on.",
}


def assess(
    exercise: Exercise,
    cases: list[Case],
    outcome_of: Callable[[int], Outcome],
    *,
    again: Callable[[int], Outcome] | None = None,
    after_a_hang: bool = True,
) -> Report:
    """Judge the cases, smallest first, up to the first failure in each part, and return the report.

    `outcome_of(place)` returns what the answer did in that case. `again`, if given, repeats a failed case alone: an
    answer that passes there, but fails after other calls, keeps state between calls.
    """
    findings: dict[str, Finding] = {}
    untried: list[str] = []
    costs: list[Cost] = []
    for place, case in enumerate(cases):
        if case.part in findings or case.part in untried:
            continue
        hung = any(finding.outcome.kind in ("stuck", "slow") for finding in findings.values())
        if hung and not after_a_hang:
            untried.append(case.part)
            continue
        outcome = outcome_of(place)
        what, costs = _what_is_wrong(exercise, case, outcome)
        if what and again and place and outcome.kind == "returned":
            alone = again(place)
            wrong_alone, costs_alone = _what_is_wrong(exercise, case, alone)
            if not wrong_alone and not outcome.in_flight:
                findings[case.part] = Finding(case, outcome, what, REMEMBERS, tuple(costs))
                continue
            outcome, what, costs = alone, wrong_alone, costs_alone
        if place == 0 and outcome.kind == "raised" and outcome.error == NOT_ATTEMPTED:
            return Report(exercise, attempted=False)
        if what:
            findings[case.part] = Finding(case, outcome, what, costs=tuple(costs))
    hung = any(finding.outcome.kind in ("stuck", "slow") for finding in findings.values())
    more = outcome_of if after_a_hang or not hung else None
    causes = {
        part: finding.cause or _cause(exercise, cases, finding, findings, more) for part, finding in findings.items()
    }
    findings = {part: replace(finding, cause=causes[part]) for part, finding in findings.items()}
    return Report(exercise, True, findings, tuple(untried), tuple(costs))


def _what_is_wrong(exercise: Exercise, case: Case, outcome: Outcome) -> tuple[str | None, list[Cost]]:
    if outcome.kind != "returned":
        return outcome.shown or "it could not be run", []
    if outcome.in_flight:
        return _describe_flight(outcome), []
    try:
        values = outcome.decoded()
        if len(values) != case.ranks:
            return "some ranks returned nothing", []
        what = exercise.judge(case, values)
        costs = exercise.costs(case, values) if exercise.costs and not what else []
    except Exception:  # an answer may return anything, and a forger may write anything
        return "what it returns does not have the form that the exercise asks for", []
    if any(cost.spent > cost.budget for cost in costs):
        what = "\n".join([TOO_MUCH, *table_of(costs)])
    return what, costs


def _describe_flight(outcome: Outcome) -> str:
    fault = outcome.in_flight[0][0]
    calls = sorted({call for found, call in outcome.in_flight if found == fault})
    if fault == NEVER:
        return f"it returned, but ranks still had not waited for: {', '.join(calls)}"
    if fault == CHANGED:
        return f"a tensor was changed between the call and the wait: {', '.join(calls)}"
    return "its values were computed from a tensor that a call had not filled yet"


def _cause(
    exercise: Exercise,
    cases: list[Case],
    finding: Finding,
    findings: dict[str, Finding],
    outcome_of: Callable[[int], Outcome] | None,
) -> str:
    """Return why this case failed, or "" if the cause is unknown."""
    outcome = finding.outcome
    if outcome.in_flight:
        ahead = [symptom for symptom in exercise.symptoms if getattr(symptom, "ahead_of_waits", False)]
        values = outcome.decoded()
        shown = [symptom for symptom in ahead if _shows(symptom, finding.case, values)]
        return idea(shown[0]) if shown else IN_FLIGHT[outcome.in_flight[0][0]]
    if outcome.kind in ("stuck", "slow"):
        return explain_hang(outcome)
    if outcome.kind == "raised":
        message = f"{outcome.error}: {outcome.text}"
        return next((why for words, why in exercise.errors.items() if words in message), "")
    if outcome.kind != "returned":
        return ""
    others = [other for other in findings.values() if other is not finding]
    return _mistake(exercise, finding, _failures(exercise, cases, finding, others, outcome_of))


def _mistake(exercise: Exercise, finding: Finding, others: Iterator[tuple[Case, list]]) -> str:
    """Return the mistake that explains a failed case and at least one more, or else an unproven one, marked as such.

    One small case fits many mistakes: half the sum of two numbers is their mean, and clipping may change nothing.
    """
    values = finding.outcome.decoded()
    shown = [symptom for symptom in exercise.symptoms if _shows(symptom, finding.case, values)]
    if shown and (finding.costs or getattr(shown[0], "observed", False)):
        return idea(shown[0])
    seen: Counter[Callable] = Counter()
    missed: set[Callable] = set()
    for case, values in others:
        verdicts = {symptom: _shows(symptom, case, values) for symptom in exercise.symptoms}
        seen.update(symptom for symptom, verdict in verdicts.items() if verdict)
        missed.update(symptom for symptom, verdict in verdicts.items() if verdict is False)
        if shown and seen[shown[0]]:
            break
    if twice := [symptom for symptom in shown if seen[symptom]]:
        return idea(twice[0])
    if elsewhere := [symptom for symptom in exercise.symptoms if seen[symptom] > 1]:
        in_all = [symptom for symptom in elsewhere if symptom not in missed]
        return IN_OTHERS + idea(in_all[0]) if in_all else IN_SOME + idea(elsewhere[0])
    return UNPROVEN + idea(shown[0]) if shown else ""


def _failures(
    exercise: Exercise,
    cases: list[Case],
    finding: Finding,
    others: list[Finding],
    outcome_of: Callable[[int], Outcome] | None,
) -> Iterator[tuple[Case, list]]:
    """Yield further cases whose values are wrong: those known from the other parts, then more of the same part."""
    for other in others:
        if other.outcome.kind == "returned" and not other.outcome.in_flight:
            yield other.case, other.outcome.decoded()
    of_part = [place for place, case in enumerate(cases) if case.part == finding.case.part]
    later = [place for place in of_part if place > cases.index(finding.case)]
    if outcome_of is None:
        return
    for place in later[:MOST_TRIED]:
        outcome = outcome_of(place)
        if outcome.kind != "returned":
            return
        if not outcome.in_flight and _what_is_wrong(exercise, cases[place], outcome)[0]:
            yield cases[place], outcome.decoded()


def _shows(symptom: Callable, case: Case, values: list) -> bool | None:
    """Return whether these values show the mistake, or None if this case can't tell."""
    try:
        found = symptom(case, values)
        return None if found is None else bool(found)
    except Exception:  # the values may have a different form
        return False


def explain_hang(outcome: Outcome) -> str:
    """Return the cause of a hang and its fix. It claims only what the ranks' states, shown above it, support."""
    text = _explain(outcome)
    return text[:1].upper() + text[1:]


def _explain(outcome: Outcome) -> str:
    states = [(doing, collective if collective.isidentifier() else "") for doing, collective, _ in outcome.states]
    waiting = {rank: call for rank, (doing, call) in enumerate(states) if doing == "waiting"}
    returned = [rank for rank, (doing, _) in enumerate(states) if doing == "returned"]
    running = [rank for rank, (doing, _) in enumerate(states) if doing in ("running", "computing")]
    calls = set(waiting.values())
    if not waiting:
        return "No rank waits for another: this is a loop that does not end, or work that takes a very long time."
    if running:
        be, rest = ("is", "the others") if len(running) == 1 else ("are", "others")
        return (
            f"{name_ranks(running)} {be} still at work while {rest} wait: a loop that does not end, or one that runs "
            "more iterations than the others'."
        )
    if calls <= {"new_group", "new_subgroups"}:
        return NEW_GROUPS
    if len(waiting) == len(states) and len(calls) == 1 and calls <= set(MESSAGES):
        return _all_alike(next(iter(calls)))
    if calls <= set(MESSAGES):
        return _unanswered(waiting, returned)
    return _not_all_there(waiting, returned, outcome)


def _all_alike(call: str) -> str:
    if call in ("send", "isend"):
        return (
            "Every rank waits in its send: a send may wait until somebody receives the message, and no rank gets as "
            "far as its receive. Start the send without waiting (`dist.isend`), receive, then wait for the send."
        )
    return (
        "Every rank waits for a message that its sender has not sent to it. Every receive needs one send, from the "
        "rank it names: begin the send (`dist.isend`) before the receive, and check who sends to whom."
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
    groups = {whom for doing, _, whom in outcome.states if doing == "waiting"}
    if returned and len(calls) == 1 and groups == {f"with {name_ranks(sorted(waiting))}"}:
        return (
            f"{name_ranks(sorted(waiting))} wait in {calls[0]} for each other, and no rank of their group is missing: "
            f"they don't have the same group. {NEW_GROUPS}"
        )
    if returned:
        called = " or ".join(calls) or "a collective"
        return (
            f"{_ranks(returned, 'has', 'have')} returned, and {_ranks(sorted(waiting), 'waits', 'wait')} in {called} "
            "for a call that will not come. Every rank of a group makes every call the same number of times: look for "
            "an `if`, a loop or a `return` that depends on what only one rank knows. (A rank that has nothing to add "
            "still makes the call.)" + OWN_GROUPS * (len(groups) > 1)
        )
    if len(calls) == 1 and len(groups) == 1:
        return f"All ranks are in {calls[0]}, but not in the same one: some have called it more often than others."
    return (
        "The ranks wait in different calls, or in different groups, each for the others. All ranks of a group make the "
        "same calls in the same order."
    )


def _ranks(ranks: list[int], one: str, many: str) -> str:
    return f"{name_ranks(ranks)} {one if len(ranks) == 1 else many}"
