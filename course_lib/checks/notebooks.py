"""The exercise notebooks: the solutions are the source, and the exercises are generated from them.

The cells carry nbgrader's metadata and markers, so an instructor can also release and collect them with nbgrader.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import linecache
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from course_lib.checks.exercise import Exercise
from course_lib.checks.inside import STAND_INS
from course_lib.checks.inside.jupyter import RUN_THEIR_CODE, new_names, run_code
from course_lib.runtime.course_files import (
    NOT_YET,
    BadNotebook,
    Notebook,
    course_folder,
    is_answer,
    nbgrader_metadata,
    read,
    source,
)

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
STUB = (NOT_YET, "raise NotImplementedError()")
SCHEMA = 3
MOST_CODE = 1_000_000  # characters; more than that was not written by hand
LONGEST_CELL = 100_000  # characters; a longer one isn't searched for magics: IPython rescans the cell for each
CELL_MAGIC = re.compile(r"\s*%%(\w+)[^\n]*")


def without_answers(notebook: Notebook) -> Notebook:
    """Return the notebook that a learner gets, with every answer replaced by a stub that raises NotImplementedError."""
    made = copy.deepcopy(notebook)
    for cell in made["cells"]:
        if is_answer(cell):
            cell["source"] = _stubbed(source(cell)).splitlines(keepends=True)
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return made


def answer_cell(exercise: Exercise, folder: Path | None = None) -> str:
    """Return the source of our answer, or a note that the solutions are not on this machine."""
    folder = folder or course_folder() / "solutions"
    paths = sorted(folder.glob(f"{exercise.lesson}_*.ipynb"))
    if not paths:
        return f"The solutions are not on this machine: look for lesson {exercise.lesson} in the course's solutions/."
    cells = read(paths[0])["cells"]
    (cell,) = (cell for cell in cells if nbgrader_metadata(cell).get("grade_id") == answer_id(exercise.number))
    return "\n".join(line for line in source(cell).splitlines() if line.strip() not in (BEGIN, END))


def answer_id(number: str) -> str:
    return f"answer-{number.replace('.', '-')}"  # nbgrader doesn't allow dots


def check_id(number: str) -> str:
    return f"check-{number.replace('.', '-')}"


def answer_metadata(number: str) -> dict[str, Any]:
    """Return nbgrader's metadata for a cell that a learner fills in."""
    flags = {"grade": False, "solution": True, "locked": False, "task": False}
    return {"nbgrader": {"schema_version": SCHEMA, "grade_id": answer_id(number), **flags}}


def check_metadata(exercise: Exercise) -> dict[str, Any]:
    """Return nbgrader's metadata for a cell that earns points."""
    flags = {"grade": True, "solution": False, "locked": True, "task": False, "points": exercise.points}
    return {"nbgrader": {"schema_version": SCHEMA, "grade_id": check_id(exercise.number), **flags}}


def heading(exercise: Exercise) -> str:
    """Return the heading of an exercise, with its level, minutes and points."""
    points = f"{exercise.points} points" if exercise.points != 1 else "1 point"
    return f"## {exercise.number} {exercise.title}\n\n*{exercise.level}, {exercise.minutes} minutes, {points}*"


def code_of(notebook: Notebook) -> list[str]:
    """Return the code cells, in order, as the Python that IPython would run."""
    cells = [source(cell) for cell in notebook["cells"] if cell.get("cell_type") == "code"]
    if sum(map(len, cells)) > MOST_CODE:
        raise BadNotebook(f"it has more than {MOST_CODE} characters of code")
    return list(map(python_of, cells))


def names_of(notebook: Notebook) -> dict[str, Any]:
    """Return the names that the code cells define. Raises `BadNotebook` if a cell raises."""
    names, problems = run_cells(notebook)
    if problems:
        raise BadNotebook(problems[0])
    return names


def run_cells(notebook: Notebook) -> tuple[dict[str, Any], list[str]]:
    """Run the code cells in this process, without their checks. Returns the names they define and the errors raised."""
    names, problems = new_names(), []
    with _checks_that_do_nothing():
        for number, text in enumerate(code_of(notebook)):
            name = f"<code cell {number + 1}>"
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
            try:
                run_code(text, name, names)
            except (Exception, SystemExit) as error:  # a learner's code may raise anything
                problems.append(_problem(name, text, error))
    return names, problems


@contextlib.contextmanager
def _checks_that_do_nothing() -> Iterator[None]:
    """Within the block, replace what notebooks import from `course_lib.checks` with grading's stand-ins."""
    checks = vars(sys.modules["course_lib.checks"])
    real = {name: checks[name] for name in STAND_INS}
    checks.update(STAND_INS)
    try:
        yield
    finally:
        checks.update(real)


def _problem(name: str, text: str, error: BaseException) -> str:
    """Return what a cell raised, and on which line."""
    own = [frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    at = error.lineno or 0 if isinstance(error, SyntaxError) else own[-1] if own else 0
    line = dict(enumerate(text.splitlines(), 1)).get(at, "").strip()
    told = f"{name[1:-1]} raised {type(error).__name__}: {error}".rstrip(": ")
    return f"{told}, at line {at}: {line}" if line else told


def _stubbed(text: str) -> str:
    lines, inside = [], False
    for line in text.splitlines():
        if line.strip() == BEGIN:
            indent = line[: len(line) - len(line.lstrip())]
            lines += [indent + part for part in STUB]
            inside = True
        elif line.strip() == END:
            inside = False
        elif not inside:
            lines.append(line)
    return "\n".join(lines)


def python_of(text: str) -> str:
    """Return a cell with its magics as calls of `get_ipython()`, on the same lines. Plain Python is returned as is."""
    if _is_python(text) or len(text) > LONGEST_CELL:
        return text
    begins = CELL_MAGIC.match(text)
    if begins and begins[1] in RUN_THEIR_CODE:
        text = "\n" * begins[0].count("\n") + text[begins.end() :]
        if _is_python(text):
            return text
    above = len(text) - len(text.lstrip())
    return "\n" * text.count("\n", 0, above) + _transformed(text)


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _transformed(text: str) -> str:
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ImportError:  # without Jupyter, drop every line that looks like a magic
        return "\n".join("" if line.lstrip()[:1] in ("%", "!") else line for line in text.split("\n"))
    try:
        return TransformerManager().transform_cell(text)
    except (SyntaxError, ValueError, RecursionError):
        return text
