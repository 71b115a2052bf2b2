"""Predictions on a lesson's page: a question that can be answered, and the result of the run, folded below it.

The fold is a `<details>`, so it opens without JavaScript; `predictions.js` makes the choices into buttons.
"""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

from course_lib.checks.catalog import find_prediction
from course_lib.checks.prediction import Between, Choice, Prediction
from course_lib.checks.showing import marked
from course_lib.checks.wording import question_box

Cell = dict[str, Any]
ASKS = re.compile(r'^predict\("(\d\d\.\d+)"\)$')
REVEALS = re.compile(r"reveal\(")
STILL = 'class="course-still"'  # a widget: readers are to step through it, so it is not folded
HEADING = re.compile(r"^#+ ", re.MULTILINE)
OPEN = '<details class="outcome" data-number="{}"><summary>Answer, or skip to the rest of this section</summary>'
WONDERS = re.compile(r"\*Predict\*|\bBefore you run\b")  # a question in the text, answered by the next cell
SAY = '<details class="outcome"><summary>Answer first, then open the result</summary>'
BELOW = "What do you predict? The result is folded below."


def with_folds(cells: list[Cell]) -> list[Cell]:
    """A lesson's cells, each question answerable, with everything from there to the next heading folded."""
    made: list[Cell] = []
    folds = 0
    for cell in _with_answers_folded(cells):
        text = "".join(cell["source"])
        asks = ASKS.match(text) if cell["cell_type"] == "code" else None
        heading = HEADING.search(text) if folds and cell["cell_type"] == "markdown" else None
        if asks:
            made += [markdown(question(asks.group(1))), markdown(OPEN.format(asks.group(1)))]
            folds += 1
        elif heading:
            made += [markdown(text[: heading.start()]), markdown("</details>" * folds)]
            made += [{**cell, "source": text[heading.start() :]}]
            folds = 0
        else:
            made.append(cell)
    return [*made, markdown("</details>" * folds)] if folds else made


def _with_answers_folded(cells: list[Cell]) -> list[Cell]:
    """The cells, with what a cell shows folded if the text before it asks, and with it the text that follows."""
    made: list[Cell] = []
    asked = folded = False
    for cell in cells:
        text = "".join(cell["source"])
        is_code = cell["cell_type"] == "code"
        if folded and (is_code or HEADING.search(text)):
            made.append(markdown("</details>"))
            folded = False
        if asked and is_code and cell["outputs"] and not ASKS.match(text) and STILL not in str(cell["outputs"]):
            made += [{**cell, "outputs": []}, markdown(SAY), _without_input({**cell, "id": f"{cell['id']}-shown"})]
            folded = True
        elif is_code and REVEALS.match(text):
            made.append(_without_input(cell))
        else:
            made.append(cell)
        asked = not is_code and bool(WONDERS.search(text))
    return [*made, markdown("</details>")] if folded else made


def _without_input(cell: Cell) -> Cell:
    """The cell, of which a page shows the outputs alone."""
    tags = [*cell["metadata"].get("tags", []), "remove-input"]
    return {**cell, "metadata": {**cell["metadata"], "tags": tags}}


def numbers_of(cells: list[Cell]) -> list[str]:
    """The predictions of a lesson, in order."""
    return [found.group(1) for cell in cells if (found := ASKS.match("".join(cell["source"])))]


def question(number: str) -> str:
    """The box that asks, with all that a page needs to answer, as data."""
    prediction = find_prediction(number)
    data = escape(json.dumps(_facts(prediction)))
    box = question_box(prediction, f'<span role="status">{BELOW}</span>')
    return box.replace('<div class="course-box', f'<div data-prediction="{data}" class="course-box', 1)


def _facts(prediction: Prediction) -> dict[str, Any]:
    bounds = [_bounds(choice, prediction.tolerance) for choice in prediction.choices] if prediction.typed else []
    return {
        "number": prediction.number,
        "typed": prediction.typed,
        "unit": prediction.unit,
        "right": prediction.choices.index(prediction.right),
        "bounds": bounds,
        "why": [_why(choice) for choice in prediction.choices],
    }


def _why(choice: Choice) -> str:
    if choice.is_right:
        return ""
    return f"<strong>The idea behind that</strong>: <em>{marked(choice.believes)}.</em> {marked(choice.why)}"


def _bounds(choice: Choice, tolerance: float) -> list[float]:
    """The smallest and the largest number that means this choice."""
    value = choice.value
    return [value.low, value.high] if isinstance(value, Between) else [value - tolerance, value + tolerance]


def markdown(text: str) -> Cell:
    """A cell that the site adds."""
    return {"cell_type": "markdown", "metadata": {}, "source": text}
