"""From what an answer did to what its writer is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from course_lib.checks.exercise import Case, Exercise, differs, idea
from course_lib.checks.inside.observe import Outcome, observe

NOT_ATTEMPTED = "NotImplementedError"


@dataclass(frozen=True)
class Finding:
    """The first case of a part that fails: what was seen, and the known mistake that does the same, if there is one."""

    case: Case
    outcome: Outcome
    what: str
    mistake: Callable | None = None


@dataclass(frozen=True)
class Report:
    """What an answer earned, and what is wrong with the rest of it."""

    exercise: Exercise
    attempted: bool = True
    findings: dict[str, Finding] = field(default_factory=dict)  # by part
    untried: tuple[str, ...] = ()  # parts that were left out after a hang

    @property
    def earned(self) -> dict[str, int]:
        """The points of each part."""
        lost = self.findings.keys() | set(self.untried)
        return {
            part: points if self.attempted and part not in lost else 0 for part, points in self.exercise.parts.items()
        }

    @property
    def points(self) -> int:
        return sum(self.earned.values())

    @property
    def passed(self) -> bool:
        return self.points == self.exercise.points

    def __str__(self) -> str:
        exercise = self.exercise
        name = f"{exercise.number} {exercise.title}"
        if not self.attempted:
            return f"{name}: not attempted yet, {exercise.points} points to earn"
        if self.passed:
            return f"✓ {name}: passed, {self.points} of {exercise.points} points"
        finding = next(iter(self.findings.values()))
        lines = [f"✗ {name}: {self.points} of {exercise.points} points", "", *_explain(finding)]
        lines += [f"\nNext: hint({exercise.number!r}), or read again lesson {exercise.lesson}, “{exercise.read}”."]
        return "\n".join(lines)


def assess(
    exercise: Exercise,
    cases: list[Case],
    try_case: Callable[[Case], Outcome],
    wrong: Callable[[Callable, Case], Outcome],
    *,
    after_a_hang: bool = True,
) -> Report:
    """Try the cases, smallest first, and each part until it fails. `wrong` says what a known mistake does in a case."""
    findings: dict[str, Finding] = {}
    untried: list[str] = []
    tried: list[tuple[Case, Outcome]] = []
    for case in cases:
        if case.part in findings or case.part in untried:
            continue
        hung = any(finding.outcome.kind == "stuck" for finding in findings.values())
        if hung and not after_a_hang:
            untried.append(case.part)
            continue
        outcome = try_case(case)
        tried.append((case, outcome))
        if len(tried) == 1 and outcome.kind == "raised" and outcome.error == NOT_ATTEMPTED:
            return Report(exercise, attempted=False)
        what = _what_is_wrong(exercise, case, outcome)
        if what:
            findings[case.part] = Finding(case, outcome, what, _known(exercise, tried, wrong))
    return Report(exercise, True, findings, tuple(untried))


def wrong_answers(exercise: Exercise) -> Callable[[Callable, Case], Outcome]:
    """What each mistake of the exercise does in a case: run when asked for, and remembered."""
    seen: dict[tuple[int, int], Outcome] = {}
    kept: list[Case] = []  # so that no other case gets the id of one that was forgotten

    def wrong(mistake: Callable, case: Case) -> Outcome:
        key = (id(mistake), id(case))
        if key not in seen:
            kept.append(case)
            seen[key] = observe(exercise.drive, mistake, case.ranks, case.inputs, exercise.timeout)
        return seen[key]

    return wrong


def _what_is_wrong(exercise: Exercise, case: Case, outcome: Outcome) -> str | None:
    if outcome.kind != "returned":
        return outcome.shown or "it could not be run"
    try:
        values = outcome.decoded()
        return exercise.judge(case, values) if len(values) == case.ranks else "some ranks returned nothing"
    except Exception:  # a judge takes the values apart; an answer may return, and a forger may write, anything
        return "what it returns has another form than the exercise asks for"


def _known(exercise: Exercise, tried: list[tuple[Case, Outcome]], wrong: Callable) -> Callable | None:
    """The mistake that does the same in the last case tried; of several, one that did the same in all of them."""
    case, outcome = tried[-1]
    if outcome.kind == "stuck":
        return exercise.hanging
    alike = [mistake for mistake in exercise.mistakes if _alike(outcome, wrong(mistake, case))]
    always = (m for m in alike if len(alike) > 1 and all(_alike(then, wrong(m, which)) for which, then in tried))
    return next(always, alike[0] if alike else None)


def _alike(outcome: Outcome, other: Outcome) -> bool:
    if outcome.kind != other.kind:
        return False
    if outcome.kind == "returned":
        try:
            return differs(outcome.decoded(), other.decoded()) is None
        except Exception:
            return False
    if outcome.kind == "raised":
        return (outcome.error, outcome.text) == (other.error, other.text)
    return True


def _explain(finding: Finding) -> list[str]:
    case = finding.case
    where = f"{case.ranks} ranks, {case.says}" if case.ranks > 1 else case.says
    lines = [f"The smallest case that fails ({case.part}): {where}", *_indented(finding.what)]
    if finding.mistake:
        lines += ["", idea(finding.mistake)]
    return lines


def _indented(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in text.splitlines()]
