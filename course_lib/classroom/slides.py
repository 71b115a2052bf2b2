"""Turn a lesson into slides: one self-contained HTML page, with a presenter view of notes and minutes.

The server of a class serves the same page with a frame, in which each prediction is a poll of the class.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.authoring.outline import Outline, asks_question
from course_lib.runtime.course_files import Cell, source

PRESENTER = Path(__file__).parent / "pages" / "presenter"
IN_CLASS = '<iframe id="class" title="The class" hidden></iframe>'
NEEDS = "slides need an extra package: pip install 'course-lib[teaching]', or in a clone pip install -e '.[teaching]'"


class CannotExport(RuntimeError):
    """Slides cannot be made on this machine; the message says what is missing."""


@dataclass
class Screen:
    """One slide: cells that appear step by step, and notes that only the speaker sees."""

    section: str
    minutes: int
    steps: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def screens(cells: Sequence[Cell], section: str, minutes: int) -> Iterator[Screen]:
    """Yield a section's slides, by each cell's slide type. After a question, code appears before its output."""
    screen = Screen(section, minutes)
    was_asked = False
    for cell in cells:
        kind = cell["metadata"].get("slideshow", {}).get("slide_type", "-")
        if kind in ("slide", "subslide") and screen.steps:
            yield screen
            screen = Screen(section, minutes)
        if kind == "notes":
            screen.notes.append(source(cell))
        if kind in ("notes", "skip"):
            continue
        shown, later = (without_output(cell), [only_output(cell)]) if was_asked and cell.get("outputs") else (cell, [])
        if kind == "fragment" or not screen.steps:
            screen.steps.append([shown])
        else:
            screen.steps[-1].append(shown)
        screen.steps += [[piece] for piece in later]
        was_asked = asks_question(cell) or (was_asked and not cell.get("outputs"))
    yield screen


def without_output(cell: Cell) -> Cell:
    """Return the cell as it looks before a run."""
    return {**cell, "outputs": []}


def only_output(cell: Cell) -> Cell:
    """Return only the outputs of a cell, without its source."""
    return {**cell, "source": ""}


def lesson_screens(lesson: Outline) -> list[Screen]:
    """Return all slides of a lesson, in order."""
    opening = list(screens(lesson.opening, lesson.title, 0))
    return opening + [
        screen for section in lesson.sections for screen in screens(section.cells, section.heading, section.minutes)
    ]


def slides_page(lesson: Outline, notes: dict[str, str], *, in_class: bool = False) -> str:
    """Return the HTML page of a lesson. `notes` maps section headings to the speaker's notes, in Markdown."""
    try:
        from course_lib.classroom.slide_content import highlighting, text_html
    except ImportError as error:
        raise CannotExport(f"{NEEDS} ({error})") from error

    shown = [_screen_html(screen) for screen in lesson_screens(lesson)]
    beside = {heading: text_html(note) for heading, note in notes.items()}
    style = (PRESENTER / "presenter.css").read_text(encoding="utf-8") + highlighting()
    page = (PRESENTER / "presenter.html").read_text(encoding="utf-8")
    pieces = {
        "TITLE": html.escape(lesson.title),
        "STYLE": style,
        "SCREENS": "\n".join(shown),
        "CLASS": IN_CLASS if in_class else "",
        "NOTES": json.dumps(beside, ensure_ascii=False).replace("</", "<\\/"),
        "SCRIPT": slides_script(),
    }
    for name, piece in pieces.items():
        page = page.replace(f"<!--{name}-->", piece)
    return page


def slides_script() -> str:
    """Return the script of the slides."""
    return (PRESENTER / "presenter.js").read_text(encoding="utf-8")


def _screen_html(screen: Screen) -> str:
    from course_lib.classroom.slide_content import cell_html, text_html

    steps = "".join(f'<div class="step">{"".join(map(cell_html, step))}</div>' for step in screen.steps)
    notes = f"<template>{''.join(map(text_html, screen.notes))}</template>"
    label = html.escape(screen.section, quote=True)
    begin = f'<section data-section="{label}" data-minutes="{screen.minutes}">'
    return f'{begin}<div class="fit">{steps}</div>{notes}</section>'
