"""A lesson as an instructor uses it: its sections, their minutes and predictions, and the cells that begin a slide.

A section heading begins a slide. Below it, cells share a sub-slide as long as they fit on the screen. A question ends
its screen: the answer is on the next sub-slide. The explanation of a result appears at the next key press, or, if it is
too long to read from a projector, becomes a speaker note. Slide types are stored in Jupyter's standard metadata, which
all tools read.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from course_lib.checks.catalog import LESSONS
from course_lib.runtime.course_files import Cell, Notebook, course_folder, read, source

HEADING = re.compile(r"## (.+?)\s*\n\s*<small>(\d+) minutes?</small>\s*")
TITLE = re.compile(r"# (.+)")
ASKS = re.compile(r"""^predict\(\s*["']([\d.]+)["']""", re.MULTILINE)


class NoLesson(ValueError):
    """There is no lesson with this number. The message lists the ones that exist."""


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
    section_starts = [place for place, cell in enumerate(cells) if begins_section(cell)]
    section_ends = [*section_starts[1:], len(cells)]
    sections = [_section(cells[begin:end]) for begin, end in zip(section_starts, section_ends, strict=True)]
    title = TITLE.match(source(cells[0]))
    opening = cells[: section_starts[0]] if section_starts else cells
    return Outline(path.stem[:2], path.stem, title[1] if title else path.stem, tuple(opening), tuple(sections))


def _section(cells: list[Cell]) -> Section:
    first = source(cells[0])
    match = HEADING.match(first)
    heading = match[1] if match else first.splitlines()[0][3:].strip()
    return Section(heading, int(match[2]) if match else 0, tuple(cells))


SCREEN = 19  # lines of text on a slide
CODE = 0.76  # the height of a line of code or output, in lines of text
CHARACTERS = 90  # per line of text
PICTURE = 12  # lines that a picture takes
REVEALED = 4  # lines that a revealed answer takes, with its reason
MAX_OUTPUT_LINES = 14  # lines; longer outputs are shrunk or scrolled
MAX_TEXT_LINES = 11  # lines of text that a class can read from a projector
STRUCTURED = re.compile(r"^\s*\||```|\$\$|^\s*(?:[-*]|\d+\.) ", re.MULTILINE)  # tables, code, formulas, lists


def mark_slides(notebook: Notebook) -> None:
    """Write every cell's slide type into its metadata; a cell that continues the one above has none."""
    for cell, kind in zip(notebook["cells"], slide_types(notebook["cells"]), strict=True):
        cell["metadata"].pop("slideshow", None)
        if kind != "-":
            cell["metadata"]["slideshow"] = {"slide_type": kind}


def slide_types(cells: Sequence[Cell]) -> list[str]:
    """Return each cell's slide type: slide, subslide, fragment, notes, skip, or - if it continues the one above."""
    kinds: list[str] = []
    shown: list[Cell] = []  # what is on the screen
    for place, cell in enumerate(cells):
        kind = _slide_type(cell, shown, cells[place - 1] if place else None, cells[place + 1 : place + 2])
        if kind in ("slide", "subslide"):
            shown = []
        if kind not in ("skip", "notes"):
            shown.append(cell)
        kinds.append(kind)
    return kinds


def _slide_type(cell: Cell, shown: list[Cell], before: Cell | None, following: Sequence[Cell]) -> str:
    if before is None or begins_section(cell):
        return "slide"
    if _is_setup(cell, in_opening=not shown or source(shown[0]).startswith("# ")):
        return "skip"
    fits = sum(map(lines_of, [*shown, cell])) <= SCREEN
    if ASKS.search(source(cell)):
        return "fragment" if fits and all(map(is_text, shown)) and not any(map(asks_question, shown)) else "subslide"
    explains = is_text(cell) and not is_text(before) and not asks_question(cell)
    if explains and lines_of(cell) > MAX_TEXT_LINES and not STRUCTURED.search(source(cell)):
        return "notes"
    is_heading = is_text(cell) and source(cell).startswith("#")
    if not fits or is_heading or any(map(asks_question, shown)) or _introduces_next(cell, following):
        return "subslide"
    return "fragment" if explains or _reveals(cell) else "-"


def _introduces_next(cell: Cell, following: Sequence[Cell]) -> bool:
    """Return whether a cell is text that ends in a colon and fits on one screen with the cell it introduces."""
    announces = is_text(cell) and source(cell).rstrip().endswith(":")
    return announces and sum(map(lines_of, [cell, *following])) <= SCREEN


def is_text(cell: Cell) -> bool:
    """Return whether a cell is text, not code."""
    return cell["cell_type"] == "markdown"


def asks_question(cell: Cell) -> bool:
    """Return whether a cell asks a question that the next cell answers."""
    text = source(cell)
    return "*Predict*" in text if is_text(cell) else bool(ASKS.search(text))


def lines_of(cell: Cell) -> float:
    """Return roughly how many lines of a slide a cell takes, including its output."""
    text = source(cell)
    if is_text(cell):
        paragraphs = [re.sub(r"\s*\n(?!\s*(?:[-*|]|\d+\.))", " ", part) for part in text.split("\n\n")]
        lines = [line for part in paragraphs for line in part.splitlines()]
        return sum(math.ceil(len(line) / CHARACTERS) for line in lines) + 0.5 * len(paragraphs)
    if _reveals(cell):
        return REVEALED
    code = 0 if ASKS.search(text) else CODE * (len(text.splitlines()) + 1)
    return code + sum(_lines_of_output(output) for output in cell.get("outputs", []))


def _lines_of_output(output: dict) -> float:
    data = output.get("data", {})
    if "image/svg+xml" in data or "<img" in "".join(data.get("text/html", "")):
        return PICTURE
    text = "".join(output.get("text") or data.get("text/plain") or output.get("traceback") or "")
    return min(MAX_OUTPUT_LINES, CODE * sum(math.ceil(CODE * len(line) / CHARACTERS) for line in text.splitlines()))


def _reveals(cell: Cell) -> bool:
    return cell["cell_type"] == "code" and source(cell).startswith("reveal(")


def _is_setup(cell: Cell, *, in_opening: bool) -> bool:
    """Return whether a cell is only setup, which is run before class and not shown."""
    if is_text(cell) or cell.get("outputs"):
        return False
    try:
        lines = ast.parse(source(cell)).body
    except SyntaxError:  # an IPython magic
        return False
    return in_opening or all(isinstance(line, (ast.Import, ast.ImportFrom)) for line in lines)


def mark_file(path: Path) -> None:
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
