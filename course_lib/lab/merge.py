"""A newer notebook of the course, with what a learner has written into the older one.

The older one need not be kept: a hash of each of its cells says which cells are still as they were laid out, and so
belong to the course, and which are the learner's.
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
    """A cell as it was laid out: enough to find it again, and to tell whether it was changed."""

    id: str
    name: str  # nbgrader's, of answers and checks: it stays the same when cells are added
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
    undecided: int  # cells that the learner and the course have both changed: the course's are in the notebook


def laid_out(notebook: Notebook) -> list[LaidOut]:
    """What is remembered of a notebook. An answer that somebody has written is never taken for the course's own."""
    cells = [(cell, _describe(cell)) for cell in notebook["cells"]]
    return [
        replace(laid, hash=WRITTEN) if is_answer(cell) and NOT_YET not in source(cell) else laid for cell, laid in cells
    ]


def without_outputs(notebook: Notebook) -> Notebook:
    """The same text and code, not yet run: what a cell prints is not to be seen before it was predicted."""
    made = {**copy.deepcopy(notebook), "metadata": _metadata()}
    for cell in made["cells"]:
        if cell.get("cell_type") == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return made


def is_changed(yours: Notebook, before: list[LaidOut]) -> bool:
    """Whether a learner has written anything. To open the file, to run it and to add an empty cell is not to write."""
    now = [_hash(cell) for cell in yours["cells"] if _hash(cell) != EMPTY]
    return now != [cell.hash for cell in before if cell.hash != EMPTY]


def merge(yours: Notebook, before: list[LaidOut], ours: Notebook) -> Merged:
    """`ours`, with the answers, changes, outputs and additional cells of `yours`, which was laid out as `before`."""
    # What an update that was stopped has already brought here is not the learner's.
    brought = set(map(_hash, ours["cells"])) - {cell.hash for cell in before}
    mine = [NOBODY if _hash(cell) in brought else _describe(cell) for cell in yours["cells"]]
    old_of = _pairs(mine, before, "name", "both", "hash", "id")
    new_of = _pairs_of_versions(before, laid_out(ours))
    cells = _Cells(copy.deepcopy(ours["cells"]))
    for index, cell in enumerate(yours["cells"]):
        old = old_of.get(index)
        if mine[index] is not NOBODY:
            cells.take(cell, None if old is None else before[old], None if old is None else new_of.get(old))
    removed = set(range(len(before))) - set(old_of.values())
    cells.remove({new_of[old]: before[old] for old in removed if old in new_of})
    return Merged({**ours, "cells": cells.in_order()}, cells.kept, cells.undecided)


def only_answers(yours: Notebook, ours: Notebook) -> Merged:
    """`ours` with the answers of `yours`, of which nobody knows how it was laid out; all the rest is undecided."""
    answers = {_describe(cell).name: cell for cell in yours["cells"] if is_answer(cell)}
    cells, kept = [], 0
    for cell in ours["cells"]:
        answer = answers.get(_describe(cell).name) if is_answer(cell) else None
        cells.append(_with_text(cell, answer) if answer else cell)
        kept += answer is not None and _hash(answer) != _hash(cell)
    return Merged({**ours, "cells": cells}, kept, len(yours["cells"]) - len(answers))


class _Cells:
    """The cells of the new notebook, into which a learner's are put one after another."""

    def __init__(self, ours: list[Cell]) -> None:
        self.ours = ours
        self.kept, self.undecided = 0, 0
        self._placed: dict[int, Cell] = {}
        self._added: dict[int, list[Cell]] = defaultdict(list)  # behind which cell of ours; -1 is the top
        self._removed: set[int] = set()
        self._last = -1
        self._ids = {cell.get("id") for cell in ours}

    def take(self, cell: Cell, old: LaidOut | None, new: int | None) -> None:
        """A learner's cell, as what it was laid out, and which of ours it is now; None: it is neither."""
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
        """What a learner has removed stays away, if it is still the same."""
        self._removed = {new for new, old in removed.items() if _hash(self.ours[new]) == old.hash}

    def in_order(self) -> list[Cell]:
        """All of them: ours in our order, each with what the learner has added below it."""
        cells = [*self._added[-1]]
        for index, cell in enumerate(self.ours):
            cells += [] if index in self._removed else [self._placed.get(index, cell)]
            cells += self._added[index]
        return cells

    def _with_an_id(self, cell: Cell) -> Cell:
        """Every id stands once: what a learner has added makes way."""
        name = cell.get("id")
        if not isinstance(name, str) or name in self._ids:
            name = uuid.uuid4().hex[:8]
        self._ids.add(name)
        return {**cell, "id": name}


def _metadata() -> dict[str, Any]:
    """What JupyterLab would write into the file when it is opened here: so it need not, and nothing is left to save."""
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
    """Which cell on the left is which on the right, by the first of these that tells."""
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
    """Which cell of the older course is which of the newer one.

    An id says little: cells are numbered, and one that is added moves all below it. A cell of which only the words have
    changed is found by its place, between two that are the same.
    """
    found = _pairs(before, now, "name", "hash")
    taken, first = set(found.values()), 0
    while first < len(before):
        end = next((index for index in range(first, len(before)) if index in found), len(before))
        below = found[first - 1] + 1 if first else 0
        above = found[end] if end < len(before) else len(now)
        free = [index for index in range(below, above) if index not in taken]
        if len(free) == end - first:
            found.update(zip(range(first, end), free, strict=True))
        first = end + 1
    return found


def _with_outputs(ours: Cell, yours: Cell) -> Cell:
    ran = {name: yours[name] for name in ("outputs", "execution_count") if name in yours and name in ours}
    return {**ours, **ran}


def _with_text(ours: Cell, yours: Cell) -> Cell:
    """A learner's cell under our id and metadata; if it has become one of another type, it is theirs altogether."""
    if yours.get("cell_type") != ours.get("cell_type"):
        return {**yours, "id": ours.get("id")}
    return {**_with_outputs(ours, yours), "source": yours.get("source", "")}
