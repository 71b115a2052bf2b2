"""The course's own notebooks, where they lie and how one is read; and files that are written whole. Without torch."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent
BROUGHT_ALONG = PACKAGE / "_course"  # what an installed wheel has; in a clone, the folders lie beside the package

DESK = Path(".course", "laid_out.json")  # a folder that has it is a desk: see course_lib/lab/desk.py

NOT_YET = "# YOUR CODE HERE"  # in an answer that nobody has written

Notebook = dict[str, Any]
Cell = dict[str, Any]


class BadNotebook(ValueError):
    """A file that is no notebook, or not one of these exercises; the sentence says how."""


def course_folder() -> Path:
    """The folder that holds `notebooks/`, `exercises/` and `solutions/`: the clone, or what a wheel brought along."""
    return BROUGHT_ALONG if BROUGHT_ALONG.is_dir() else PACKAGE.parent


def desk_folder() -> Path:
    """Where a learner's things are: on the desk that we are on, or that is below; else with the exercises, or here."""
    if "COURSE_LIB_PROGRESS" in os.environ:
        return Path(os.environ["COURSE_LIB_PROGRESS"]).parent
    here = Path.cwd()
    for folder in (here, *here.parents, here / "work"):
        if (folder / DESK).is_file():
            return folder
    beside = (folder for folder in (here / "exercises", here.parent / "exercises") if folder.is_dir())
    return next(beside, here)


def read(path: Path) -> Notebook:
    """A notebook from a file. Raises `BadNotebook` with the reason if it is none."""
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise BadNotebook(f"it is not a notebook ({type(error).__name__})") from error


def parse(content: bytes) -> Notebook:
    """A notebook from what its file says. Raises `BadNotebook` with the reason if it is none."""
    try:
        notebook = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadNotebook(f"it is not a notebook ({type(error).__name__})") from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise BadNotebook("it is not a notebook: it has no list of cells")
    return notebook


def write_whole(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file aside, then rename it: at every moment it is whole, or the one from before. Makes its folder.

    With `mode=0o600` nobody else can read it, not even for a moment.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        aside.touch(mode, exist_ok=False)
        aside.write_bytes(content.encode() if isinstance(content, str) else content)
        aside.replace(path)
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def source(cell: Cell) -> str:
    """A cell's text: a list of lines, or one piece."""
    text = cell.get("source", "")
    return "".join(map(str, text)) if isinstance(text, list) else str(text)


def nbgrader_metadata(cell: Cell) -> dict[str, Any]:
    """What nbgrader knows of a cell: whether it is an answer or a check, and of which exercise."""
    metadata = cell.get("metadata")
    found = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def is_answer(cell: Cell) -> bool:
    """Whether this is a cell that a learner fills in."""
    return bool(nbgrader_metadata(cell).get("solution"))
