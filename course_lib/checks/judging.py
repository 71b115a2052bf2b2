"""From what an answer did to what its writer is told."""

from __future__ import annotations

from collections.abc import Callable

from course_lib.checks.exercise import Case, Cost, Exercise, idea
from course_lib.checks.hangs import explain_hang
from course_lib.checks.inside.observe import Outcome
from course_lib.checks.report import TOO_MUCH, Finding, Report, table_of

NOT_ATTEMPTED = "NotImplementedError"


def assess(
    exercise: Exercise,
    cases: list[Case],
    outcome_of: Callable[[int], Outcome],
    *,
    again: Callable[[int], Outcome] | None = None,
    after_a_hang: bool = True,
) -> Report:
    """Judge the cases, smallest first, and each part until it fails.

    `outcome_of` has what the answer did in the case of that place. Before a case is refused, it is tried `again`,
    where that can be done.
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
        if again and place and outcome.kind == "returned" and _what_is_wrong(exercise, case, outcome)[0]:
            outcome = again(place)
        if place == 0 and outcome.kind == "raised" and outcome.error == NOT_ATTEMPTED:
            return Report(exercise, attempted=False)
        what, costs = _what_is_wrong(exercise, case, outcome)
        if what:
            findings[case.part] = Finding(case, outcome, what, _cause(exercise, case, outcome), tuple(costs))
    return Report(exercise, True, findings, tuple(untried), tuple(costs))


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


def _cause(exercise: Exercise, case: Case, outcome: Outcome) -> str:
    """Return why this case failed, as far as that can be known; "" where only what was seen can be told."""
    if outcome.kind in ("stuck", "slow"):
        return explain_hang(outcome)
    if outcome.kind == "returned":
        values = outcome.decoded()
        return next((idea(symptom) for symptom in exercise.symptoms if _shows(symptom, case, values)), "")
    if outcome.kind == "raised":
        message = f"{outcome.error}: {outcome.text}"
        return next((why for words, why in exercise.errors.items() if words in message), "")
    return ""


def _shows(symptom: Callable, case: Case, values: list) -> bool:
    try:
        return bool(symptom(case, values))
    except Exception:  # values of another form show nothing
        return False
