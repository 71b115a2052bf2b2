"""Merge what a learner has written in a notebook into a newer version of that notebook.

We do not store the original version: a hash of each of its cells tells which cells are unchanged, and so belong to the
course, and which are the learner's.
"""

from __future__ import annotations

import copy
import hashlib
import platform
import uuid
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from course_lib.course_files import NOT_YET, Cell, Notebook, is_answer, nbgrader_metadata, source

EMPTY = ""  # the hash of a cell with nothing in it
WRITTEN = "written"


@dataclass(frozen=True)
class LaidOut:
    """A cell as it was put on the desk: enough to find it again, and to tell whether it has changed."""

    id: str
    name: str  # nbgrader's name of an answer or check, which stays the same when cells are added
    hash: str

    @property
    def both(self) -> str:
        return self.id and self.hash and f"{self.id} {self.hash}"


NOBODY = LaidOut("", "", "")


@dataclass(frozen=True)
class Merged:
    """The new notebook with the learner's cells in it."""

    notebook: Notebook
    kept: int  # cells that the learner wrote
    undecided: int  # cells that both the learner and the course changed: the notebook has the course's version


def laid_out(notebook: Notebook) -> list[LaidOut]:
    """Return what we remember of a notebook. An answer that someone has written never counts as the course's."""
    cells = [(cell, _describe(cell)) for cell in notebook["cells"]]
    return [
        replace(laid, hash=WRITTEN) if is_answer(cell) and NOT_YET not in source(cell) else laid for cell, laid in cells
    ]


def without_outputs(notebook: Notebook) -> Notebook:
    """Return the notebook without outputs, so that learners do not see a result before they have predicted it."""
    made = {**copy.deepcopy(notebook), "metadata": _metadata()}
    for cell in made["cells"]:
        if cell.get("cell_type") == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return made


def is_changed(yours: Notebook, before: list[LaidOut]) -> bool:
    """Return whether a learner has written anything. Opening or running the file, or adding an empty cell, is not."""
    now = [_hash(cell) for cell in yours["cells"] if _hash(cell) != EMPTY]
    return now != [cell.hash for cell in before if cell.hash != EMPTY]


def merge(yours: Notebook, before: list[LaidOut], ours: Notebook) -> Merged:
    """Return `ours` with the answers, changes, outputs and added cells of `yours`, which was laid out as `before`."""
    # Cells that an interrupted update has already brought here are not the learner's.
    brought = set(map(_hash, ours["cells"])) - {cell.hash for cell in before}
    mine = [NOBODY if _hash(cell) in brought else _describe(cell) for cell in yours["cells"]]
    old_of = _pairs(mine, before, "name", "both", "hash", "id")
    new_of = _pairs_of_versions(before, laid_out(ours))
    cells = _Cells(copy.deepcopy(ours["cells"]))
    for index, cell in enumerate(yours["cells"]):
        old = old_of.get(index)
        if mine[index] is not NOBODY:
            cells.add(cell, None if old is None else before[old], None if old is None else new_of.get(old))
    removed = set(range(len(before))) - set(old_of.values())
    cells.remove({new_of[old]: before[old] for old in removed if old in new_of})
    return Merged({**ours, "cells": cells.in_order()}, cells.kept, cells.undecided)


def only_answers(yours: Notebook, ours: Notebook) -> Merged:
    """Return `ours` with the answers of `yours`, whose original version is unknown; all other cells are undecided."""
    answers = {_describe(cell).name: cell for cell in yours["cells"] if is_answer(cell)}
    cells, kept = [], 0
    for cell in ours["cells"]:
        answer = answers.get(_describe(cell).name) if is_answer(cell) else None
        cells.append(_with_text(cell, answer) if answer else cell)
        kept += answer is not None and _hash(answer) != _hash(cell)
    return Merged({**ours, "cells": cells}, kept, len(yours["cells"]) - len(answers))


class _Cells:
    """The cells of the new notebook, to which we add a learner's cells one by one."""

    def __init__(self, ours: list[Cell]) -> None:
        self.ours = ours
        self.kept, self.undecided = 0, 0
        self._placed: dict[int, Cell] = {}
        self._added: dict[int, list[Cell]] = defaultdict(list)  # by the cell of ours that they follow; -1 is the top
        self._removed: set[int] = set()
        self._last = -1
        self._ids = {cell.get("id") for cell in ours}

    def add(self, cell: Cell, old: LaidOut | None, new: int | None) -> None:
        """Add a learner's cell; `old` is its original, and `new` its index in the new notebook, or None without one."""
        changed = old is None or _hash(cell) != old.hash
        if new is not None:
            self._last = new
            self._place(cell, old, new, changed)
        elif changed and _hash(cell) != EMPTY:
            self._added[self._last].append(self._with_an_id(cell))
            self.kept += 1

    def _place(self, cell: Cell, old: LaidOut | None, new: int, changed: bool) -> None:
        ours = self.ours[new]
        if _hash(cell) == _hash(ours):
            self._placed[new] = _with_outputs(ours, cell)
        elif changed and (is_answer(ours) or (old is not None and _hash(ours) == old.hash)):
            self._placed[new] = _with_text(ours, cell)
            self.kept += 1
        elif changed:
            self.undecided += 1

    def remove(self, removed: dict[int, LaidOut]) -> None:
        """Remove the cells that the learner removed, unless the course has changed them."""
        self._removed = {new for new, old in removed.items() if _hash(self.ours[new]) == old.hash}

    def in_order(self) -> list[Cell]:
        """Return all cells: ours in our order, each followed by what the learner added below it."""
        cells = [*self._added[-1]]
        for index, cell in enumerate(self.ours):
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


def _pairs(left: list[LaidOut], right: list[LaidOut], *by: str) -> dict[int, int]:
    """Match cells on the left with cells on the right, by each of these attributes in turn."""
    found: dict[int, int] = {}
    for key in by:
        free = defaultdict(list)
        for index, cell in enumerate(right):
            if index not in found.values() and getattr(cell, key):
                free[getattr(cell, key)].append(index)
        for index, cell in enumerate(left):
            if index not in found and free[getattr(cell, key)]:
                found[index] = free[getattr(cell, key)].pop(0)
    return found


def _pairs_of_versions(before: list[LaidOut], now: list[LaidOut]) -> dict[int, int]:
    """Match the cells of an older version of the course with those of a newer one.

    Ids say little: they are numbers, and an added cell shifts all those below it. A cell whose text has changed is
    found by its place between two unchanged ones.
    """
    found = _pairs(before, now, "name", "hash")
    used, first = set(found.values()), 0
    while first < len(before):
        end = next((index for index in range(first, len(before)) if index in found), len(before))
        below = found[first - 1] + 1 if first else 0
        above = found[end] if end < len(before) else len(now)
        free = [index for index in range(below, above) if index not in used]
        if len(free) == end - first:
            found.update(zip(range(first, end), free, strict=True))
        first = end + 1
    return found


def _with_outputs(ours: Cell, yours: Cell) -> Cell:
    ran = {name: yours[name] for name in ("outputs", "execution_count") if name in yours and name in ours}
    return {**ours, **ran}


def _with_text(ours: Cell, yours: Cell) -> Cell:
    """Return a learner's cell with our id and metadata; if they changed its type, only with our id."""
    if yours.get("cell_type") != ours.get("cell_type"):
        return {**yours, "id": ours.get("id")}
    return {**_with_outputs(ours, yours), "source": yours.get("source", "")}
