"""Judge one submission, in a child of the grader: the output of its sandbox is untrusted."""

from __future__ import annotations

import json
import pickle
import warnings
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from dataclasses import asdict, replace
from typing import Any

import torch.distributed as dist

from course_lib.checks.catalog import exercises
from course_lib.checks.exercise import Case, Exercise
from course_lib.checks.inside.observe import Outcome
from course_lib.checks.inside.runner import END
from course_lib.checks.inside.watch import NOTICED
from course_lib.checks.judging import IN_OTHERS, assess
from course_lib.checks.notebooks import code_of
from course_lib.checks.report import Finding
from course_lib.grading.pages import page
from course_lib.grading.records import Mark, Record
from course_lib.runtime.course_files import parse

LONGEST_LINE = 1 << 20  # bytes of output per case
MOST_PROBLEMS = 10
LONGEST_TEXT = 2000  # characters of anything we report
NOT_MEASURED = "Not measured: {}. It earns nothing until your instructor has looked at the code."
MOST_NAMES = 4  # different exceptions named for one notebook
NAMED = {
    *("AssertionError", "AttributeError", "ImportError", "IndexError", "KeyError", "ModuleNotFoundError", "NameError"),
    *("RecursionError", "RuntimeError", "TypeError", "UnboundLocalError", "ValueError", "ZeroDivisionError"),
}


def read_cells(content: bytes) -> list[str]:
    """Return the code cells of a notebook. Raises `BadNotebook`."""
    return code_of(parse(content))


def judge(numbers: list[str], packed_cases: bytes, cells: list[str], lines: list[bytes], reason: str) -> dict[str, Any]:
    """Return the marks for these exercises, and problems with the whole notebook, from the sandbox's output."""
    cases: dict[str, list[Case]] = pickle.loads(packed_cases)
    names = Names()
    outcomes, problems = what_was_seen(lines, reason, cells, names)
    marks = [_mark(exercises()[number], cases[number], outcomes, names) for number in numbers]
    return {"marks": [asdict(mark) for mark in marks], "problems": [_short(problem) for problem in problems]}


def render(student: str, records: list[dict[str, Any]]) -> str:
    """Return a student's page as HTML."""
    return page(student, [Record.of_fields(fields) for fields in records])


class Names:
    """The exceptions that a student's page names. A submission chooses what it raises and could leak its inputs that
    way, so we name only common exceptions, and only the first few.
    """

    def __init__(self) -> None:
        self._told: set[str] = set()

    def of(self, error: str) -> str:
        """Return the name of the exception if we reveal it, else "an exception"."""
        if error in NAMED and len(self._told | {error}) <= MOST_NAMES:
            self._told.add(error)
            return error
        return "an exception"


def what_was_seen(
    lines: list[bytes], reason: str, cells: list[str], names: Names | None = None
) -> tuple[dict[tuple[str, int], Outcome], list[str]]:
    """Return the outcomes by exercise and case, and a list of problems. The lines are untrusted."""
    outcomes: dict[tuple[str, int], Outcome] = {}
    problems = [f"Grading was stopped: {reason}."] if reason else []
    if not reason and END not in lines:
        problems.append("It ended its own process before grading was finished.")
    no_python = syntax_errors(cells)
    raised = ""
    for line in lines:
        if len(line) > LONGEST_LINE:
            continue  # too long to parse
        try:
            record = json.loads(line)
            if "cell" in record:
                raised = raised or _raised(record["error"], names or Names())
            else:
                outcomes[str(record["number"]), int(record["case"])] = Outcome.of_record(record["outcome"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, RuntimeError, OverflowError):
            continue
    return outcomes, (problems + no_python + [raised] * bool(raised))[:MOST_PROBLEMS]


def syntax_errors(cells: list[str]) -> list[str]:
    """Return a sentence per cell with a syntax error. We compile the cells here, because the sandbox is untrusted."""
    found = []
    for number, cell in enumerate(cells, 1):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(cell, "<cell>", "exec", PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            lines, at = cell.splitlines(), getattr(error, "lineno", None) or 0
            where = f" at “{lines[at - 1].strip()[:100]}”" if 0 < at <= len(lines) else ""
            found.append(f"Code cell {number} raised {type(error).__name__}{where}.")
    return found[:MOST_PROBLEMS]


def _raised(error: Any, names: Names) -> str:
    """Return what a cell raised, without its number: only the submission knows it, and could use it to leak data."""
    if str(error) in ("SyntaxError", "IndentationError", "TabError"):
        return ""
    return f"One of its cells raised {names.of(str(error))}: restart the kernel and run all cells to see which."


def _mark(exercise: Exercise, cases: list[Case], outcomes: dict[tuple[str, int], Outcome], names: Names) -> Mark:
    def look_up(place: int) -> Outcome:
        return believable(outcomes.get((exercise.number, place), Outcome("missing")), cases[place])

    report = assess(exercise, cases, look_up)
    attempted = report.attempted and any(look_up(place).kind != "missing" for place in range(len(cases)))
    if not attempted:
        return Mark(exercise.number, report.earned, attempted=False)
    earned = dict(report.earned)
    remarks = {part: _short(remark(finding, names)) for part, finding in report.findings.items()}
    blinded = {
        case.part: noticed for place, case in enumerate(cases) if (noticed := _noticed(exercise, case, look_up(place)))
    }
    not_measured = [part for part in blinded if is_metered(exercise) and earned[part]]
    for part in not_measured:
        earned[part], remarks[part] = 0, NOT_MEASURED.format(NOTICED.get(blinded[part], "something is odd"))
    causes = {part: _short(_cause(finding)) for part, finding in report.findings.items() if finding.cause}
    by_clock = [part for part, finding in report.findings.items() if finding.outcome.kind == "slow"]
    return Mark(exercise.number, earned, remarks, causes=causes, by_clock=by_clock, not_measured=not_measured)


def _noticed(exercise: Exercise, case: Case, outcome: Outcome) -> str:
    """Return why the meters cannot be trusted: what was noticed on a rank, or "too little" for impossibly low costs."""
    if outcome.noticed or outcome.kind != "returned" or not exercise.costs:
        return outcome.noticed
    try:
        costs = exercise.costs(case, outcome.decoded())
    except Exception:  # its values are wrong, too
        return ""
    return "too little" if any(cost.spent < cost.at_least for cost in costs) else ""


def is_metered(exercise: Exercise) -> bool:
    """Whether points depend on what a meter counts next to the answer."""
    return exercise.costs is not None or "meter" in exercise.drive.__code__.co_names


def believable(outcome: Outcome, case: Case) -> Outcome:
    """Keep only what an outcome can honestly contain: one state per rank, in calls that exist."""
    if len(outcome.states) != case.ranks:
        return replace(outcome, states=())
    states = ((doing, call if hasattr(dist, call) else "", whom) for doing, call, whom in outcome.states)
    return replace(outcome, states=tuple(states))


def remark(finding: Finding, names: Names) -> str:
    """Return what a student may know about a failed case: the idea, but no inputs or expected values, and no number
    that the submission could choose, because that could leak the seed of the inputs.
    """
    outcome = finding.outcome
    text = {
        "returned": "It runs, but its result is wrong.",
        "raised": f"It raises {names.of(outcome.error)}.",
        "stuck": "Its ranks wait forever.",
        "slow": "It was stopped because it took too long.",
        "died": "One of its ranks ends its process.",
        "differ": "Its ranks make calls that do not match.",
        "missing": "It did not run to the end.",
    }.get(outcome.kind, "It could not be run.")
    if finding.costs:
        text = "The values are right, but it costs more than the exercise allows."
    if not finding.cause:
        return text
    return _cause(finding) if outcome.kind == "returned" else f"{text} {_cause(finding)}"


def _cause(finding: Finding) -> str:
    """Return why a case fails. A student's page shows no cases, so we drop the remark about other cases."""
    return finding.cause.removeprefix(IN_OTHERS)


def _short(text: str) -> str:
    """Cut text to `LONGEST_TEXT` and replace what cannot be encoded."""
    return text.encode(errors="replace").decode()[:LONGEST_TEXT]
