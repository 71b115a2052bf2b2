"""An exercise as a page: what is asked, the stub and the hints. Neither checks nor solutions are on the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from repository import binder_address, source_address

from course_lib.checks.catalog import find

NUMBER = re.compile(r"^## (\d\d\.\d+) ", re.MULTILINE)
CHECKS = ("check(", "hint(", "solution(")
HOW = """:::{{admonition}} How to do them
:class: tip run-it

`course lab` opens them on your desk, in `exercises/{name}.ipynb`. `check` tries your function on real ranks and says
what it saw: [how exercises work](../docs/handbook/exercises.md).{ways}
:::"""


def exercise_page(notebook: dict[str, Any], file: str) -> str:
    """The page, in Markdown, of an exercises' notebook."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    (_, opening), *others = cells
    opening = re.sub(r"^# (\d\d) ·", r"# Exercises \1 ·", opening)
    parts = [opening, _how(file)]
    number = ""
    for kind, text in others:
        if kind == "markdown":
            asked = NUMBER.search(text)
            parts += [_hints(number)] if asked and number else []
            number = asked.group(1) if asked else number
            parts.append(text)
        elif not text.startswith(CHECKS):
            parts.append(f"```python\n{text}\n```")
    return "\n\n".join([*parts, _hints(number)]) + "\n"


def _how(file: str) -> str:
    ways = [("Open in Binder", binder_address(file)), ("Source", source_address(file))]
    links = " · ".join(f"[{words}]({address})" for words, address in ways if address)
    return HOW.format(name=Path(file).stem, ways=f"\n\n{links}" if links else "")


def _hints(number: str) -> str:
    """The hints of an exercise, each closed until it is asked for."""
    hints = find(number).hints
    boxes = [
        f"<details><summary>Hint {place} of {len(hints)}</summary>\n\n{text}\n\n</details>"
        for place, text in enumerate(hints, 1)
    ]
    return "\n\n".join(boxes)
