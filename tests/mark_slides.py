"""Mark what begins a slide in the lessons, by the rule of `course_lib.classroom.slide_types`: `make teaching`."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat

from course_lib.classroom.slide_types import mark_slides

ROOT = Path(__file__).resolve().parent.parent


def marked(path: Path) -> str:
    """The text of a notebook's file with every cell's slide type in it; nothing else differs."""
    notebook = nbformat.read(path, as_version=4)
    mark_slides(notebook)
    return nbformat.writes(notebook) + "\n"


def main(paths: list[Path]) -> None:
    """Mark these lessons."""
    for path in paths:
        path.write_text(marked(path), encoding="utf-8")


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]] or sorted((ROOT / "notebooks").glob("*.ipynb")))
