"""Mark which cells of a lesson begin a slide, following the rule in `course_lib.classroom.slide_types`."""

from __future__ import annotations

from pathlib import Path

from course_lib.classroom.slide_types import mark_slides


def mark(path: Path) -> None:
    """Write the slide type of every cell into the notebook's file."""
    path.write_text(marked(path), encoding="utf-8")


def marked(path: Path) -> str:
    """Return the text of a notebook's file with the slide type of every cell in its metadata.

    A file that is already marked correctly is returned unchanged.
    """
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    mark_slides(notebook)
    return nbformat.writes(notebook) + "\n"
