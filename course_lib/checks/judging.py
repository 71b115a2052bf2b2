"""From what an answer did to what its writer is told."""

from __future__ import annotations

import copy
from collections.abc import Callable

from course_lib.checks.exercise import Case, Cost, Exercise, differs, idea
from course_lib.checks.hangs import explain_hang
from course_lib.checks.inside.observe import Outcome, observe, observe_many
from course_lib.checks.report import TOO_MUCH, Finding, Report, table_of

NOT_ATTEMPTED = "NotImplementedError"


def assess(
    exercise: Exercise,
    cases: list[Case],
    outcome_of: Callable[[int], Outcome],
    wrong: Callable[[Case], list[Outcome]],
    *,
    again: Callable[[int], Outcome] | None = None,
    after_a_hang: bool = True,
) -> Report:
    """Judge the cases, smallest first, and each part until it fails.

    `outcome_of` has what the answer did in the case of that place, and `wrong` what the known mistakes do. Before
    a case is refused, it is tried `again`, where that can be done.
    """
    findings: dict[str, Finding] = {}
    untried: list[str] = []
    tried: list[tuple[Case, Outcome]] = []
    costs: list[Cost] = []
    for place, case in enumerate(cases):
        if case.part in findings or case.part in untried:
            continue
        hung = any(finding.outcome.kind in ("stuck", "slow") for finding in findings.values())
        if hung and not after_a_hang:
            untried.append(case.part)
            continue
        outcome = outcome_of(place)
        if again and place and outcome.kind == "returned" and _what_is_wrong(exercise, case, outcome)[0]:
            outcome = again(place)
        tried.append((case, outcome))
        if len(tried) == 1 and outcome.kind == "raised" and outcome.error == NOT_ATTEMPTED:
            return Report(exercise, attempted=False)
        what, costs = _what_is_wrong(exercise, case, outcome)
        if what:
            findings[case.part] = Finding(case, outcome, what, _cause(exercise, tried, wrong), tuple(costs))
    return Report(exercise, True, findings, tuple(untried), tuple(costs))


def wrong_answers(exercise: Exercise) -> Callable[[Case], list[Outcome]]:
    """What each mistake of the exercise does in a case: run in silence when asked for, and remembered."""
    seen: dict[int, tuple[Case, list[Outcome]]] = {}  # a case is kept, so that no other one gets its id

    def wrong(case: Case) -> list[Outcome]:
        if id(case) not in seen:
            calls = [(mistake, copy.deepcopy(case.inputs)) for mistake in exercise.mistakes]
            outcomes: list[Outcome] = []
            while left := calls[len(outcomes) :]:
                outcomes += observe_many(exercise.drive, left, case.ranks, exercise.timeout)
                for mistake, inputs in calls[len(outcomes) :][:1]:  # one that did not return
                    outcomes.append(observe(exercise.drive, mistake, case.ranks, inputs, exercise.timeout, quiet=True))
            seen[id(case)] = (case, outcomes)
        return seen[id(case)][1]

    return wrong


def _what_is_wrong(exercise: Exercise, case: Case, outcome: Outcome) -> tuple[str | None, list[Cost]]:
    if outcome.kind != "returned":
        return outcome.shown or "it could not be run", []
    try:
        values = outcome.decoded()
        if len(values) != case.ranks:
            return "some ranks returned nothing", []
        what = exercise.judge(case, values)
        costs = exercise.costs(case, values) if exercise.costs and not what else []
    except Exception:  # a judge takes the values apart; an answer may return, and a forger may write, anything
        return "what it returns has another form than the exercise asks for", []
    if any(cost.spent > cost.budget for cost in costs):
        what = "\n".join([TOO_MUCH, *table_of(costs)])
    return what, costs


def _cause(exercise: Exercise, tried: list[tuple[Case, Outcome]], wrong: Callable[[Case], list[Outcome]]) -> str:
    """Why the last case tried failed, as far as that can be known; "" where only what was seen can be told."""
    case, outcome = tried[-1]
    if outcome.kind in ("stuck", "slow"):
        return explain_hang(outcome)
    if outcome.kind == "returned":
        values = outcome.decoded()
        if shown := next((symptom for symptom in exercise.symptoms if _shows(symptom, case, values)), None):
            return idea(shown)
    if outcome.kind == "raised":
        told = f"{outcome.error}: {outcome.text}"
        if why := next((why for words, why in exercise.errors.items() if words in told), ""):
            return why
    if outcome.kind in ("died", "differ", "missing", "failed") or not exercise.mistakes:
        return ""
    alike = [place for place, other in enumerate(wrong(case)) if _alike(outcome, other)]
    always = (p for p in alike if len(alike) > 1 and all(_alike(then, wrong(which)[p]) for which, then in tried))
    place = next(always, alike[0] if alike else None)
    return "" if place is None else idea(exercise.mistakes[place])


def _shows(symptom: Callable, case: Case, values: list) -> bool:
    try:
        return bool(symptom(case, values))
    except Exception:  # values of another form show nothing
        return False


def _alike(outcome: Outcome, other: Outcome) -> bool:
    if outcome.kind != other.kind:
        return False
    if outcome.kind == "returned":
        try:
            return differs(outcome.decoded(), other.decoded()) is None
        except Exception:
            return False
    return (outcome.error, outcome.text) == (other.error, other.text)
