"""The report on an answer: the points it earned, and what is wrong with the rest.

A notebook displays it as a colored box; in a terminal or with `print` it is text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from course_lib.checks.catalog import address
from course_lib.checks.exercise import Case, Cost, Exercise
from course_lib.checks.inside.observe import Outcome
from course_lib.checks.showing import box, in_notebook, plain, with_code

TOO_MUCH = "the values are right, but it costs more than the exercise allows:"
RANK = re.compile(r"^\s+rank (\d+)\s+(\S.*)$")  # a line of the table that shows where each rank waits


@dataclass(frozen=True)
class Finding:
    """The first failing case of a part: what was observed, and the cause, if that can be inferred."""

    case: Case
    outcome: Outcome
    what: str
    cause: str = ""
    costs: tuple[Cost, ...] = ()  # if the values are right

    @property
    def where(self) -> str:
        """The case as text."""
        return f"{self.case.ranks} ranks, {self.case.says}" if self.case.ranks > 1 else self.case.says


@dataclass(frozen=True, repr=False)
class Report:
    """What an answer earned, part by part. `float(report)` is the total."""

    exercise: Exercise
    attempted: bool = True
    findings: dict[str, Finding] = field(default_factory=dict)  # by part
    untried: tuple[str, ...] = ()  # parts skipped after a hang
    costs: tuple[Cost, ...] = ()  # of the last case, if all passed

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

    @property
    def finding(self) -> Finding | None:
        """The finding of the first failing part, which is the one to show."""
        return next(iter(self.findings.values()), None)

    @property
    def verdict(self) -> str:
        """The result in one line."""
        if not self.attempted:
            return f"not attempted yet, {self.exercise.points} points to earn"
        passed = "passed, " if self.passed else ""
        return f"{passed}{self.points} of {self.exercise.points} points"

    def __float__(self) -> float:
        return float(self.points)

    def __str__(self) -> str:
        exercise = self.exercise
        sign = "" if not self.attempted else "✓ " if self.passed else "✗ "
        lines = [f"{sign}{exercise.number} {exercise.title}: {self.verdict}"]
        if self.passed:
            lines += table_of(self.costs)
        elif finding := self.finding:
            where = exercise.where_to_read_for(finding.case.part)
            lines += ["", *_explained(finding), f"\nNext: hint({exercise.number!r}), or read {where}, again."]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str] | None:
        """Return the box as HTML, and the points alone as plain text, where nbgrader reads them."""
        if not in_notebook():
            return None
        return {"text/html": as_box(self), "text/plain": str(float(self))}


def table_of(costs: Sequence[Cost]) -> list[str]:
    """Return the lines of a table of what was spent and what the budget allows."""
    if not costs:
        return []
    width = max(len(cost.what) for cost in costs)
    rows = [f"  {cost.what:<{width}} {shown(cost.spent):>12} {shown(cost.budget):>12}" for cost in costs]
    marked = [f"{row}  too much" if cost.spent > cost.budget else row for row, cost in zip(rows, costs, strict=True)]
    return [f"  {'':<{width}} {'spent':>12} {'budget':>12}", *marked]


def shown(amount: float) -> str:
    """Return a cost as text."""
    return f"{amount:,.10g}"


def _explained(finding: Finding) -> list[str]:
    lines = [f"The smallest case that fails ({finding.case.part}): {finding.where}"]
    lines += [f"  {line}".rstrip() for line in finding.what.splitlines()]
    if finding.cause:
        lines += ["", finding.cause]
    return lines


def as_box(report: Report) -> str:
    """Return the report as the HTML of a box, without scripts. All text from the answer is escaped."""
    exercise = report.exercise
    sign = "" if not report.attempted else "✓ " if report.passed else "✗ "
    head = f"{sign}{exercise.number} {plain(exercise.title)}: {report.verdict}"
    kind = "neutral" if not report.attempted else "right" if report.passed else "wrong"
    body = _parts(report) if report.attempted else f"<p>Write <code>{plain(exercise.answer)}</code> above.</p>"
    if report.passed:
        body += _costs(report.costs)
    elif report.finding:
        body += _explain(report.finding) + _next(report, report.finding)
    return box(kind, head, body, f"Report on exercise {exercise.number}")


def _parts(report: Report) -> str:
    items = []
    for part, most in report.exercise.parts.items():
        earned = report.earned[part]
        state = "" if earned else " (not tried, after the hang)" if part in report.untried else ""
        sign, spoken = ("✓", "earned") if earned else ("✗", "not earned")
        items.append(
            f'<li><span role="img" aria-label="{spoken}">{sign}</span> {plain(part)}: {earned} of {most}{state}</li>'
        )
    return f'<ul class="course-plain">{"".join(items)}</ul>'


def _explain(finding: Finding) -> str:
    cause = f"<p>{with_code(finding.cause)}</p>" if finding.cause else ""
    head = f"<p><strong>The smallest case that fails</strong> ({plain(finding.case.part)}): {plain(finding.where)}</p>"
    return f"{head}{_what(finding)}{cause}"


def _what(finding: Finding) -> str:
    """Return the HTML of what was observed: costs and waiting ranks as tables, the rest as preformatted text."""
    if finding.what.startswith(TOO_MUCH):
        return f"<p>{TOO_MUCH.capitalize()}</p>{_costs(finding.costs)}"
    lines, waiting = finding.what.splitlines(), []
    if finding.outcome.kind in ("stuck", "slow", "differ"):
        waiting = [match.groups() for line in lines if (match := RANK.match(line))]
        lines = [line for line in lines if not RANK.match(line)]
    rest = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
    return f"<pre>{plain(rest)}</pre>{_waiting(waiting)}"


def _waiting(ranks: Sequence[tuple[str, ...]]) -> str:
    if not ranks:
        return ""
    rows = "".join(f'<tr><th scope="row">{rank}</th><td>{plain(doing)}</td></tr>' for rank, doing in ranks)
    head = '<tr><th scope="col">rank</th><th scope="col">what it does</th></tr>'
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _costs(costs: Sequence[Cost]) -> str:
    if not costs:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{plain(cost.what)}</th><td class="course-number">{shown(cost.spent)}</td>'
        f'<td class="course-number">{shown(cost.budget)}</td>'
        f"<td>{'too much' if cost.spent > cost.budget else 'within the budget'}</td></tr>"
        for cost in costs
    )
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("cost", "spent", "budget", "verdict"))
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _next(report: Report, finding: Finding) -> str:
    exercise = report.exercise
    lesson, section = exercise.section_for(finding.case.part)
    words = plain(exercise.where_to_read_for(finding.case.part))
    where = address(lesson, section)
    read = f'<a href="{where}">{words}</a>' if where else words
    number = exercise.number
    return (
        f"<p><strong>Next</strong>: <code>hint({number!r})</code>, or read {read}, again. "
        f"<code>solution({number!r})</code> shows our answer.</p>"
    )
