"""Lessons are complete as they are stored. (That they still say the same when run is nbval's part of `make test`.)"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from course_lib.runtime.course_files import source

LESSONS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))


@pytest.fixture(params=LESSONS, ids=[path.stem for path in LESSONS])
def lesson(request) -> dict:
    return json.loads(request.param.read_text())


def code_cells(lesson: dict) -> list[dict]:
    return [cell for cell in lesson["cells"] if cell["cell_type"] == "code"]


def tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])


def test_every_cell_was_run_in_order(lesson):
    assert [cell["execution_count"] for cell in code_cells(lesson)] == list(range(1, len(code_cells(lesson)) + 1))


def test_a_cell_that_prints_or_shows_has_its_output_stored(lesson):
    showing = 0
    for cell in code_cells(lesson):
        last = source(cell).rstrip().splitlines()[-1]
        shows = last.startswith(("print(", "launch(", "pictures.", "    print(")) or last.endswith(".messages()")
        if shows:
            showing += 1
            assert cell["outputs"], f"nbval would compare nothing with:\n{source(cell)}"
    assert showing > 5


def test_a_heading_begins_its_cell(lesson):
    """A link leads to a cell: to its first line."""
    for cell in lesson["cells"]:
        if cell["cell_type"] == "markdown":
            assert not re.search(r"\n#+ ", re.sub(r"```.*?```", "", source(cell), flags=re.S)), source(cell)


def test_only_cells_that_say_so_end_in_an_error(lesson):
    for cell in code_cells(lesson):
        failed = any(output["output_type"] == "error" for output in cell["outputs"])
        assert failed == ("raises-exception" in tags(cell)), source(cell)


def test_every_picture_says_in_words_what_it_shows(lesson):
    outputs = [output.get("data", {}) for cell in code_cells(lesson) for output in cell["outputs"]]
    shown = ["".join(data.get("text/html", "")) for data in outputs]
    bare = [text[:80] for text, data in zip(shown, outputs, strict=True) if "image/png" in data and "<img " not in text]
    assert not bare, "JupyterLab ignores the words beside a PNG"
    words = [re.findall(r'<img [^>]*?\balt="([^"]*)"', text) for text in shown if "<img " in text]
    assert all(len(alt) > 20 for alts in words for alt in alts or [""])


def test_cells_are_short_enough_to_read(lesson):
    for cell in code_cells(lesson):
        imports = r"^(from \S+ import \((\n {4}.*)*\n\)|from .*|import .*)\n"
        assert len(re.sub(imports, "", source(cell), flags=re.M).splitlines()) <= 30, source(cell)


def test_a_lesson_has_its_parts(lesson):
    text = "\n".join(source(cell) for cell in lesson["cells"] if cell["cell_type"] == "markdown")
    for part in ("**After this lesson you can**", "**Time**", "**Builds on**", "*Predict*", "roken on purpose"):
        assert part in text
    for part in ("On real GPUs", "torchrun", "## Recap", "**Exercises**: ["):
        assert part in text
