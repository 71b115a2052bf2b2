"""Merge what a learner has written in a notebook into a newer version of that notebook.

We do not store the original version, only a hash of each of its cells. A cell with the same hash is unchanged and
belongs to the course; the others are the learner's.
"""

from __future__ import annotations

import copy
import hashlib
import platform
import uuid
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from course_lib.runtime.course_files import NOT_YET, Cell, Notebook, is_answer, nbgrader_metadata, source

EMPTY = ""  # the hash of a cell with nothing in it
WRITTEN = "written"


@dataclass(frozen=True)
class LaidOut:
    """A cell as it was put on the desk: enough to find it again, and to see whether it has changed."""

    id: str
    name: str  # nbgrader's name of an answer or check, which stays the same when cells are added
    hash: str

    @property
    def id_and_hash(self) -> str:
        return self.id and self.hash and f"{self.id} {self.hash}"


NOBODY = LaidOut("", "", "")


@dataclass(frozen=True)
class Merged:
    """The new notebook with the learner's cells in it."""

    notebook: Notebook
    learner_cells: int  # cells that the learner wrote
    conflicts: int  # cells that both the learner and the course changed: the notebook has the course's version


def laid_out(notebook: Notebook) -> list[LaidOut]:
    """Return what we remember of a notebook. An answer that someone has written never counts as the course's."""
    cells = [(cell, _describe(cell)) for cell in notebook["cells"]]
    return [
        replace(cell_record, hash=WRITTEN) if is_answer(cell) and NOT_YET not in source(cell) else cell_record
        for cell, cell_record in cells
    ]


def without_outputs(notebook: Notebook) -> Notebook:
    """Return the notebook without outputs, so that learners do not see a result before they have predicted it."""
    cleaned = {**copy.deepcopy(notebook), "metadata": _metadata()}
    for cell in cleaned["cells"]:
        if cell.get("cell_type") == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return cleaned


def is_changed(yours: Notebook, before: list[LaidOut]) -> bool:
    """Return whether a learner has written anything.

    Opening or running the file, or adding an empty cell, does not count.
    """
    now = [_hash(cell) for cell in yours["cells"] if _hash(cell) != EMPTY]
    return now != [cell.hash for cell in before if cell.hash != EMPTY]


def merge(yours: Notebook, before: list[LaidOut], course: Notebook) -> Merged:
    """Return `course` with the answers, changes, outputs and added cells of `yours`, which was laid out as `before`."""
    # Cells that an interrupted update has already brought here are not the learner's.
    brought = set(map(_hash, course["cells"])) - {cell.hash for cell in before}
    described = [NOBODY if _hash(cell) in brought else _describe(cell) for cell in yours["cells"]]
    originals = _pairs(described, before, "name", "id_and_hash", "hash", "id")
    successors = _pairs_of_versions(before, laid_out(course))
    cells = _Cells(copy.deepcopy(course["cells"]))
    for index, cell in enumerate(yours["cells"]):
        old = originals.get(index)
        if described[index] is not NOBODY:
            cells.add(cell, None if old is None else before[old], None if old is None else successors.get(old))
    removed = set(range(len(before))) - set(originals.values())
    cells.remove({successors[old]: before[old] for old in removed if old in successors})
    return Merged({**course, "cells": cells.in_order()}, cells.learner_cells, cells.conflicts)


def only_answers(yours: Notebook, course: Notebook) -> Merged:
    """Return `course` with the answers of `yours`, whose original version is unknown; other cells are conflicts."""
    answers = {_describe(cell).name: cell for cell in yours["cells"] if is_answer(cell)}
    cells, count = [], 0
    for cell in course["cells"]:
        answer = answers.get(_describe(cell).name) if is_answer(cell) else None
        cells.append(_with_text(cell, answer) if answer else cell)
        count += answer is not None and _hash(answer) != _hash(cell)
    return Merged({**course, "cells": cells}, count, len(yours["cells"]) - len(answers))


class _Cells:
    """The cells of the new notebook, to which we add a learner's cells one by one."""

    def __init__(self, course: list[Cell]) -> None:
        self.course = course
        self.learner_cells, self.conflicts = 0, 0
        self._placed: dict[int, Cell] = {}
        self._added: dict[int, list[Cell]] = defaultdict(list)  # by the index of the cell above; -1 is the top
        self._removed: set[int] = set()
        self._last_placed = -1
        self._ids = {cell.get("id") for cell in course}

    def add(self, cell: Cell, old: LaidOut | None, new: int | None) -> None:
        """Add a learner's cell; `old` is its original, and `new` its index in the new notebook, if there are any."""
        changed = old is None or _hash(cell) != old.hash
        if new is not None:
            self._last_placed = new
            self._place(cell, old, new, changed)
        elif changed and _hash(cell) != EMPTY:
            self._added[self._last_placed].append(self._with_an_id(cell))
            self.learner_cells += 1

    def _place(self, cell: Cell, old: LaidOut | None, new: int, changed: bool) -> None:
        course = self.course[new]
        if _hash(cell) == _hash(course):
            self._placed[new] = _with_outputs(course, cell)
        elif changed and (is_answer(course) or (old is not None and _hash(course) == old.hash)):
            self._placed[new] = _with_text(course, cell)
            self.learner_cells += 1
        elif changed:
            self.conflicts += 1

    def remove(self, removed: dict[int, LaidOut]) -> None:
        """Remove the cells that the learner removed, unless the course has changed them."""
        self._removed = {new for new, old in removed.items() if _hash(self.course[new]) == old.hash}

    def in_order(self) -> list[Cell]:
        """Return all cells: the course's in its order, each followed by what the learner added below it."""
        cells = [*self._added[-1]]
        for index, cell in enumerate(self.course):
            cells += [] if index in self._removed else [self._placed.get(index, cell)]
            cells += self._added[index]
        return cells

    def _with_an_id(self, cell: Cell) -> Cell:
        """Return the learner's cell with a new id if its own is missing or used: ids must be unique."""
        name = cell.get("id")
        if not isinstance(name, str) or name in self._ids:
            name = uuid.uuid4().hex[:8]
        self._ids.add(name)
        return {**cell, "id": name}


def _metadata() -> dict[str, Any]:
    """Return the metadata that JupyterLab would write when it opens the file, so that opening it changes nothing."""
    language = {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
        "version": platform.python_version(),
    }
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    return {"kernelspec": kernel, "language_info": language}


def _describe(cell: Cell) -> LaidOut:
    return LaidOut(str(cell.get("id", "")), str(nbgrader_metadata(cell).get("grade_id", "")), _hash(cell))


def _hash(cell: Cell) -> str:
    text = source(cell).strip()
    if not text:
        return EMPTY
    return hashlib.sha256(f"{cell.get('cell_type')}\n{text}".encode(errors="replace")).hexdigest()[:16]


def _pairs(cells: list[LaidOut], candidates: list[LaidOut], *by: str) -> dict[int, int]:
    """Match cells on the left with cells on the right, by each of these attributes in turn."""
    pairs: dict[int, int] = {}
    for key in by:
        free = defaultdict(list)
        for index, cell in enumerate(candidates):
            if index not in pairs.values() and getattr(cell, key):
                free[getattr(cell, key)].append(index)
        for index, cell in enumerate(cells):
            if index not in pairs and free[getattr(cell, key)]:
                pairs[index] = free[getattr(cell, key)].pop(0)
    return pairs


def _pairs_of_versions(before: list[LaidOut], now: list[LaidOut]) -> dict[int, int]:
    """Match the cells of an older version of the course with those of a newer one.

    Ids do not help: they are numbers, and an added cell shifts all those below it. A cell whose text has changed is
    found by its position between two unchanged ones.
    """
    pairs = _pairs(before, now, "name", "hash")
    used, start = set(pairs.values()), 0
    while start < len(before):
        end = next((index for index in range(start, len(before)) if index in pairs), len(before))
        below = pairs[start - 1] + 1 if start else 0
        above = pairs[end] if end < len(before) else len(now)
        free = [index for index in range(below, above) if index not in used]
        if len(free) == end - start:
            pairs.update(zip(range(start, end), free, strict=True))
        start = end + 1
    return pairs


def _with_outputs(course: Cell, yours: Cell) -> Cell:
    ran = {name: yours[name] for name in ("outputs", "execution_count") if name in yours and name in course}
    return {**course, **ran}


def _with_text(course: Cell, yours: Cell) -> Cell:
    """Return a learner's cell with the course's id and metadata, or, if the learner changed its type, only the id."""
    if yours.get("cell_type") != course.get("cell_type"):
        return {**yours, "id": course.get("id")}
    return {**_with_outputs(course, yours), "source": yours.get("source", "")}
