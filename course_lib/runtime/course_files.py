"""Find and read the course's notebooks, write files atomically, and lock them. Does not import torch."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3

PACKAGE = Path(__file__).resolve().parents[1]
BROUGHT_ALONG = PACKAGE / "_course"  # exists in an installed wheel; in a clone, the folders are next to the package

DESK = Path(".course", "laid_out.json")  # marks a folder as a desk: see course_lib/lab/desk.py

NOT_YET = "# YOUR CODE HERE"  # marks an answer that has not been written yet

Notebook = dict[str, Any]
Cell = dict[str, Any]


class BadNotebook(ValueError):
    """The file is not a notebook, or not one of these exercises. The message says why."""


def course_folder() -> Path:
    """Return the folder that holds `notebooks/`, `exercises/` and `solutions/`: in the clone, or in the wheel."""
    return BROUGHT_ALONG if BROUGHT_ALONG.is_dir() else PACKAGE.parent


def desk_folder() -> Path:
    """Return the folder for a learner's work.

    Looks for a desk in the current folder, the folders above it, and `work/`. If there is none, returns an `exercises`
    folder, or else the current one.
    """
    if "COURSE_LIB_PROGRESS" in os.environ:
        return Path(os.environ["COURSE_LIB_PROGRESS"]).parent
    here = Path.cwd()
    for folder in (here, *here.parents, here / "work"):
        if (folder / DESK).is_file():
            return folder
    beside = (folder for folder in (here / "exercises", here.parent / "exercises") if folder.is_dir())
    return next(beside, here)


def read(path: Path) -> Notebook:
    """Read a notebook from a file. Raises `BadNotebook` with the reason if it is not one."""
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise BadNotebook(f"it is not a notebook ({type(error).__name__})") from error


def parse(content: bytes) -> Notebook:
    """Parse a notebook from the contents of its file. Raises `BadNotebook` with the reason if it is not one."""
    try:
        notebook = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadNotebook(f"it is not a notebook ({type(error).__name__})") from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise BadNotebook("it is not a notebook: it has no list of cells")
    return notebook


def write_whole(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file atomically: write a temporary file, then rename it. Creates the parent folder.

    With `mode=0o600`, no other user can read it at any point.
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
    """Return a cell's text as one string, whether it is stored as a string or a list of lines."""
    text = cell.get("source", "")
    return "".join(map(str, text)) if isinstance(text, list) else str(text)


def nbgrader_metadata(cell: Cell) -> dict[str, Any]:
    """Return a cell's nbgrader metadata: whether it is an answer or a check, and for which exercise."""
    metadata = cell.get("metadata")
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    return nbgrader if isinstance(nbgrader, dict) else {}


def is_answer(cell: Cell) -> bool:
    """Return whether the learner fills in this cell."""
    return bool(nbgrader_metadata(cell).get("solution"))


def hold_lock(path: Path, patience: float = 0) -> sqlite3.Connection | None:
    """Return the lock on a file, or None if someone else holds it for longer than `patience` seconds.

    Closing the connection releases the lock, and so does the end of the process. We use SQLite because it also locks
    files on Windows, where there is no `flock`. The file stays empty; only its owner can read it.
    """
    import sqlite3  # imported here, so that only callers that take a lock pay for the import

    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    lock = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        lock.close()
        if "locked" in str(error):
            return None
        raise  # the disk is full, or the file is not writable
    return lock
