"""A lesson as an instructor plans it: its sections, their minutes, and the predictions asked in each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from course_lib.checks.catalog import LESSONS
from course_lib.course_files import Cell, course_folder, read, source

HEADING = re.compile(r"## (.+?)\s*\n\s*<small>(\d+) minutes?</small>\s*")
TITLE = re.compile(r"# (.+)")
ASKS = re.compile(r"""^predict\(\s*["']([\d.]+)["']""", re.MULTILINE)


class NoLesson(ValueError):
    """There is no lesson with this number. The sentence says which there are."""


@dataclass(frozen=True)
class Section:
    """A section of a lesson: the cells from its heading to the next one."""

    heading: str
    minutes: int
    cells: tuple[Cell, ...]

    @property
    def asked(self) -> list[str]:
        """The numbers of the predictions that this section asks for."""
        code = (source(cell) for cell in self.cells if cell["cell_type"] == "code")
        return [number for text in code for number in ASKS.findall(text)]


@dataclass(frozen=True)
class Outline:
    """A lesson: the cells before its first section, and its sections."""

    number: str
    name: str  # the name of its notebook
    title: str  # as in its first line: 06 · Pipeline parallelism: every stage at work
    opening: tuple[Cell, ...]
    sections: tuple[Section, ...]

    @property
    def minutes(self) -> int:
        return sum(section.minutes for section in self.sections)


def begins_section(cell: Cell) -> bool:
    """Return whether a cell begins with a section heading."""
    return cell["cell_type"] == "markdown" and source(cell).startswith("## ")


@cache
def outlines() -> dict[str, Outline]:
    """Return all lessons that have a notebook, by number."""
    folder = course_folder() / "notebooks"
    paths = [folder / f"{lesson.name}.ipynb" for lesson in LESSONS.values()]
    return {path.stem[:2]: outline(path) for path in paths if path.is_file()}


def find_outline(number: str) -> Outline:
    """Return the lesson with this number. Raises `NoLesson` if there is none."""
    try:
        return outlines()[number.strip().zfill(2)]
    except KeyError:
        raise NoLesson(f"{number}: there is no such lesson; give one of {', '.join(outlines())}") from None


def outline(path: Path) -> Outline:
    """Read a lesson's outline from its notebook."""
    cells = read(path)["cells"]
    begins = [place for place, cell in enumerate(cells) if begins_section(cell)]
    ends = [*begins[1:], len(cells)]
    sections = [_section(cells[begin:end]) for begin, end in zip(begins, ends, strict=True)]
    title = TITLE.match(source(cells[0]))
    opening = cells[: begins[0]] if begins else cells
    return Outline(path.stem[:2], path.stem, title[1] if title else path.stem, tuple(opening), tuple(sections))


def _section(cells: list[Cell]) -> Section:
    first = source(cells[0])
    found = HEADING.match(first)
    heading = found[1] if found else first.splitlines()[0][3:].strip()
    return Section(heading, int(found[2]) if found else 0, tuple(cells))
