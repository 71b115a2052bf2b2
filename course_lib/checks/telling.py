"""What a class is told of a report: the part that failed and the mistake by name, and nothing of the answer itself."""

from __future__ import annotations

import builtins
import re

from course_lib.checks.report import TOO_MUCH, Finding, Report
from course_lib.events import publish

# Where the cause is not known, what kind of failure it was: the same words for all of a kind, so that they are counted.
KINDS = {
    "returned": "It returns other values",
    "stuck": "Its ranks wait for each other",
    "slow": "It takes too long",
    "differ": "Its ranks call different collectives",
    "died": "A rank dies",
}
ENDS = re.compile(r"(?<=[.:;!?])\s")  # of a sentence, or of a part of one


def tell_class(report: Report) -> None:
    """Tell the class of a try. An untouched stub is none."""
    if report.attempted:
        finding = report.finding
        publish(
            "checked",
            number=report.exercise.number,
            passed=report.passed,
            points=report.points,
            part=finding.case.part if finding else "",
            mistake=mistake_of(finding) if finding else "",
        )


def mistake_of(finding: Finding) -> str:
    """The named cause, by its first words, which name it; else what kind of failure it was."""
    kind = finding.outcome.kind
    if finding.cause and kind not in ("stuck", "slow"):  # of a hang, it names this answer's ranks
        return ENDS.split(finding.cause)[0].rstrip(".:; ")
    if finding.what.startswith(TOO_MUCH):
        return "It costs more than the exercise allows"
    if kind == "raised":
        known = isinstance(getattr(builtins, finding.outcome.error, None), type)  # another name is of their making
        return f"It raises {finding.outcome.error}" if known else "It raises an error"
    return KINDS.get(kind, "It could not be run")
