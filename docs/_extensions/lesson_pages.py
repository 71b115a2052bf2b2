"""What the site adds to a lesson: how to run it, and maps of lessons and exercises with their hours."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from predictions import STILL, Cell, markdown, numbers_of, with_folds
from repository import ROOT, address, binder_address, source_address

from course_lib.authoring.outline import outlines
from course_lib.checks.catalog import LESSONS, exercises
from course_lib.checks.exercise import Exercise
from course_lib.checks.showing import marked
from course_lib.lab.cards import card_picture

CAPTION = re.compile(  # a sentence in italics, or the paragraph that such words begin
    r"\A\*(?P<whole>Figure \d+: (?:[^*]|\*\*[^*]+\*\*)+[.)])\*\s*|\A(?P<begun>\*Figure \d+: .+?)(?:\n\n|\Z)", re.DOTALL
)
ROW = re.compile(r"^\| (\d\d) \| \[(.+?)\]\((.+?)\) \| \d+ \| (.+) \|$", re.MULTILINE)


def lesson_notebook(notebook: dict[str, Any], file: str) -> dict[str, Any]:
    """A lesson as its page shows it: how to run it, questions that can be answered, and what comes next."""
    opening, *others = notebook["cells"]
    opening["source"] = re.sub(r"^# (\d\d) ·", r"# Lesson \1 ·", "".join(opening["source"]))
    others = with_captions(others)
    numbers = numbers_of(others)
    ends = [markdown(f"## What comes next\n\n{score(numbers)}\n\n{what_comes_next(file)}")]
    cells = [opening, markdown(how_to_run(file)), *with_folds(others), *ends]
    for place, cell in enumerate(cells):
        cell["id"] = f"cell-{place}"
    return {**notebook, "cells": cells}


def with_captions(cells: list[Cell]) -> list[Cell]:
    """The cells, with each picture's caption, with which a later text begins, directly below the picture."""
    made: list[Cell] = []
    below = 0  # where the caption of the last picture belongs; 0 if it has one
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown" and below and (found := CAPTION.match(text)):
            caption = found.group("whole") or found.group("begun")
            made.insert(below, markdown(f'<div class="caption">\n\n{caption}\n\n</div>'))
            cell, below = {**cell, "source": text[found.end() :]}, 0
        made.append(cell)
        if any(_draw(output) for output in cell.get("outputs", ())):
            below = len(made)
    return made


def _draw(output: Cell) -> bool:
    """Whether the output is a picture. What a chart draws becomes a figure, which scrolls where it does not fit."""
    html = "".join(output.get("data", {}).get("text/html", ""))
    if html.startswith("<img alt"):
        output["data"]["text/html"] = f'<figure class="drawn" tabindex="0">{html}</figure>'
    return html.startswith("<img alt") or STILL in html


def score(numbers: list[str]) -> str:
    """A line that says how many of a lesson's predictions were answered; `predictions.js` fills it."""
    return f'<p class="prediction-score" data-numbers="{" ".join(numbers)}" hidden></p>' if numbers else ""


def what_comes_next(file: str) -> str:
    """Links to the lesson's exercises and to the next lesson."""
    name = Path(file).stem
    exercises = f"[Exercises {name[:2]}](../exercises/{name}.ipynb)"
    after = LESSONS.get(f"{int(name[:2]) + 1:02}")
    if after is None:
        return exercises
    where = "notebooks" if (ROOT / "notebooks" / f"{after.name}.ipynb").is_file() else "exercises"
    return f"{exercises} · [Lesson {after.number}: {after.title}](../{where}/{after.name}.ipynb)"


def how_to_start() -> str:
    """The two commands that open the course; where the repository is on the web, the first fetches it."""
    if address():
        return f"```\ngit clone {address()} course\nmake -C course lab\n```"
    return "In the course's folder, which is a clone of its repository:\n\n```\npip install -e .\ncourse lab\n```"


def how_to_run(file: str) -> str:
    """The ways to a lesson that can be run, as a box: here, on Binder, its exercises and its source."""
    name = Path(file).stem
    asked = [exercise for number, exercise in exercises().items() if number.startswith(name[:2])]
    minutes = sum(exercise.minutes for exercise in asked)
    ways = [f"[{len(asked)} exercises](../exercises/{name}.ipynb), {minutes} minutes"]
    ways += [f"[Open in Binder]({binder_address(file)})"] if binder_address(file) else []
    ways += [f"[Source]({source_address(file)})"] if source_address(file) else []
    return (
        ":::{admonition} Run it yourself\n:class: tip run-it\n\n"
        "What you read here was stored by a run. In a clone of the course, `pip install -e .` and `course lab` open "
        f"JupyterLab, where `notebooks/{name}.ipynb` waits, not yet run: [how to start](../docs/handbook/desk.md).\n\n"
        + " · ".join(ways)
        + "\n:::"
    )


def cards(file: str) -> str:
    """A card for each lesson: its picture, its title, what is learned and its minutes."""
    made = []
    for number, title, path, learned in ROW.findall((ROOT / "README.md").read_text()):
        lesson = outlines().get(number)
        minutes = lesson.minutes if lesson else _minutes(_of_lesson(number))
        numbers = [each for section in lesson.sections for each in section.asked] if lesson else []
        name = f"{Path(path).parent.name.replace('notebooks', 'lessons')}/{Path(path).stem}.html"
        facts = f'<p>{marked(learned)}</p><p class="card-facts">{minutes} minutes</p>{score(numbers)}'
        words = f'<h3><a href="{name}">{number} · {title}</a></h3>{facts}'
        made.append(f'<li class="lesson-card">{card_picture(number)}<div>{words}</div></li>')
    return f'<ul class="lesson-cards">{"".join(made)}</ul>'


def buttons(file: str) -> str:
    """The two ways in: get the course, or read its first lesson."""
    first = next(iter(LESSONS.values())).name
    return f'<p class="ways-in"><a href="#start">Start</a> <a href="lessons/{first}.html">Read lesson 00</a></p>'


def map_of_lessons(file: str) -> str:
    """A table of the lessons with their minutes; what is learned is the README's."""
    lines = ["| | lesson | minutes | exercises | you learn |", "|--|---|--:|--:|---|"]
    for number, title, path, learned in ROW.findall((ROOT / "README.md").read_text()):
        link = _from(file, path)
        lesson = outlines().get(number)
        minutes = lesson.minutes if lesson else ""
        lines.append(f"| {number} | [{title}]({link}) | {minutes} | {_minutes(_of_lesson(number))} | {learned} |")
    total = sum(lesson.minutes for lesson in outlines().values())
    lines.append(f"| | **in all, hours** | **{total / 60:.0f}** | **{_minutes(_all()) / 60:.0f}** | |")
    return "\n".join(lines)


def short_titles(file: str) -> str:
    """The entries of a section's contents, a page for each lesson, with titles that fit on a line."""
    folder = {"docs/lessons.md": "notebooks", "docs/exercises.md": "exercises"}.get(file, "docs/teaching")
    lines = []
    for number, title, path, _ in ROW.findall((ROOT / "README.md").read_text()):
        page = Path(path).stem
        if not list((ROOT / folder).glob(f"{page}.*")):
            page = f"../{path.removesuffix('.ipynb')}" if folder == "notebooks" else ""
        lines += [f"{number} · {title} <{page}>"] if page else []
    return "\n".join(lines)


def map_of_exercises(file: str) -> str:
    """A table of the exercises with their kind, minutes and points."""
    lines = ["| | exercise | kind | minutes | points |", "|--|---|---|--:|--:|"]
    for exercise in _all():
        (notebook,) = (ROOT / "exercises").glob(f"{exercise.lesson}_*.ipynb")
        link = _from(file, f"exercises/{notebook.name}")
        row = (exercise.number, f"[{exercise.title}]({link})", exercise.level, exercise.minutes, exercise.points)
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines)


def _all() -> list[Exercise]:
    return list(exercises().values())


def _of_lesson(number: str) -> list[Exercise]:
    return [exercise for exercise in _all() if exercise.lesson == number]


def _minutes(those: list[Exercise]) -> int:
    return sum(exercise.minutes for exercise in those)


def _from(file: str, path: str) -> str:
    return os.path.relpath(path, Path(file).parent)
