"""What the doctor found: a line each, with what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """One line of the report. `advice` says what to do; `fatal` means that the course cannot run."""

    name: str
    value: str
    advice: str = ""
    fatal: bool = False

    @property
    def mark(self) -> str:
        return "FAIL" if self.fatal else "note" if self.advice else "ok"


@dataclass
class Report:
    """What was found, in order."""

    findings: list[Finding] = field(default_factory=list)

    @property
    def course_can_run(self) -> bool:
        return not any(finding.fatal for finding in self.findings)

    def __str__(self) -> str:
        verdict = "The course can run here." if self.course_can_run else "The course cannot run here yet."
        return "\n".join([*lines_of(self.findings), "", verdict])


def lines_of(findings: Sequence[Finding]) -> list[str]:
    """The findings as a table, with a line of its own for what to do."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"  {finding.mark:<4}  {finding.name:<{width}}  {finding.value}")
        if finding.advice:
            lines.append(f"  {'':<4}  {'':<{width}}  -> {finding.advice}")
    return lines
