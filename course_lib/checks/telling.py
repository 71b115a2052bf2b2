"""What a class learns about a report: the part that failed and the name of the mistake, but not the answer."""

from __future__ import annotations

import builtins
import re

from course_lib.checks.report import TOO_MUCH, Finding, Report
from course_lib.runtime.events import publish

# The kind of failure, if the cause is unknown. Failures of a kind share one wording, so the class can count them.
KINDS = {
    "returned": "It returns the wrong values",
    "stuck": "Its ranks wait for each other",
    "slow": "It takes too long",
    "differ": "Its ranks call different collectives",
    "died": "A rank dies",
}
ENDS = re.compile(r"(?<=[.:;!?])\s")  # the end of a sentence or clause


def tell_class(report: Report) -> None:
    """Publish a try to the class. An untouched stub doesn't count."""
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
    """Return the first clause of the cause, which names it, or the kind of failure if the cause is unknown."""
    kind = finding.outcome.kind
    if finding.cause and kind not in ("stuck", "slow"):  # the cause of a hang names ranks
        return ENDS.split(finding.cause)[0].rstrip(".:; ")
    if finding.what.startswith(TOO_MUCH):
        return "It costs more than the exercise allows"
    if kind == "raised":
        known = isinstance(getattr(builtins, finding.outcome.error, None), type)  # other names are the learner's own
        return f"It raises {finding.outcome.error}" if known else "It raises an error"
    return KINDS.get(kind, "It could not be run")
