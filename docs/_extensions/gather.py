"""Sphinx's source, gathered from the repository: the site shows files where they lie, and git holds no copy of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from api_pages import api_pages
from exercise_pages import exercise_page
from lesson_pages import buttons, cards, how_to_start, lesson_notebook, map_of_exercises, map_of_lessons, short_titles
from links import with_page_links
from moving_picture import moving_picture
from repository import ROOT, pages
from sphinx.application import Sphinx

CONTENTS = {  # pages that a page leads to, where the file itself, which is also read elsewhere, does not say so
    "docs/teaching/README.md": "half_a_day\none_day\ntwo_days\nsemester\n<!-- short titles -->",
    "docs/handbook/README.md": "desk\nlaunch\ndiagnosis\nexercises\njobs\nclusters\ngrading\nglossary",
    "docs/deploy/README.md": "*",
    "CONTRIBUTING.md": "tests/index",
    "tests/README.md": "browser\nchecks",
}

TEACHING = "docs/teaching/"
EMPTY = re.compile(r"^## .+\n\n\*\d+ minutes?\*\n\n(?=## |\Z)", re.MULTILINE)  # sections that need no notes
NUMBERED = re.compile(r"^# (\d\d) ·", re.MULTILINE)
MADE = {  # what stands on a page in place of a comment
    "moving picture": lambda _: moving_picture(),
    "how to start": lambda _: how_to_start(),
    "two buttons": buttons,
    "cards of lessons": cards,
    "map of lessons": map_of_lessons,
    "map of exercises": map_of_exercises,
    "short titles": short_titles,
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Gather before Sphinx looks for its pages."""
    app.connect("builder-inited", lambda app: gather(Path(app.srcdir)))
    return {"parallel_read_safe": True}


def gather(folder: Path) -> None:
    """Write all pages into `folder`, those alone that have changed, and delete what is no page any more."""
    written = {folder / name for name in _write_all(folder)}
    for file in [file for file in folder.rglob("*") if file.is_file() and file not in written]:
        file.unlink()


def _write_all(folder: Path) -> Iterator[str]:
    known = pages()
    brought: set[str] = set()

    def bring(path: str) -> str:
        brought.add(path)
        return f"files/{path}"

    for file, page in known.items():
        name = page + (".ipynb" if file.startswith("notebooks/") else ".md")
        _write(folder / name, _page(file, known, bring).encode())
        yield name
    for name, text in api_pages().items():
        _write(folder / name, text.encode())
        yield name
    for path in brought:
        _write(folder / "files" / path, (ROOT / path).read_bytes())
        yield f"files/{path}"


def _page(file: str, known: dict[str, str], bring) -> str:
    text = (ROOT / file).read_text()
    if file.startswith("notebooks/"):
        notebook = lesson_notebook(json.loads(text), file)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = with_page_links("".join(cell["source"]), file, known, bring)
        return json.dumps(notebook)
    if file.startswith("exercises/"):
        text = exercise_page(json.loads(text), file)
    if file.startswith(TEACHING):
        text = NUMBERED.sub(r"# Teaching \1 ·", EMPTY.sub("", text), count=1)
    if file == "README.md":
        text = f"---\norphan: true\nnosearch: true\n---\n{text}"  # the front page takes paragraphs from here
    elif file.startswith(TEACHING):
        text = f"---\nnosearch: true\n---\n{text}"  # they have the answers
    if file in CONTENTS:
        text += f"\n```{{toctree}}\n:hidden:\n:glob:\n\n{CONTENTS[file]}\n```\n"
    for mark, made in MADE.items():
        text = text.replace(f"<!-- {mark} -->", made(file)) if f"<!-- {mark} -->" in text else text
    return with_page_links(text, file, known, bring)


def _write(path: Path, content: bytes) -> None:
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
