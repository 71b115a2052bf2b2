"""A notebook's code is what IPython would run: magics do nothing, and no line of Python is lost."""

from __future__ import annotations

import sys

import cloudpickle
import pytest

from course_lib.checks.inside.jupyter import new_names, run_code
from course_lib.checks.notebooks import MOST_CODE, code_of, python_of, run_cells
from course_lib.runtime.course_files import BadNotebook


def notebook(*cells: str) -> dict:
    return {"cells": [{"cell_type": "code", "source": cell} for cell in cells]}


def names_after(*cells: str) -> dict:
    names, problems = run_cells(notebook(*cells))
    assert not problems
    return names


@pytest.mark.parametrize("line", ["%", "!", "%%"])
def test_a_line_of_python_that_begins_like_a_magic_stays(line):
    if line == "%":
        assert names_after("rank, ranks = 0, 4\nlast = ((rank - 1)\n    % ranks)")["last"] == 3
    text = f'words = """\n{line}time\n"""'
    assert names_after(text)["words"] == f"\n{line}time\n"
    assert names_after("%matplotlib inline\n" + text)["words"] == f"\n{line}time\n"


@pytest.mark.parametrize(
    "cell",
    [
        "%matplotlib inline\nx = 1",
        "!touch {path}\nx = 1",
        "y = !touch {path}\nx = 1",
        "files = %sx touch {path}\nx = 1",
        "if True:\n    %load_ext autoreload\n    x = 1",
        "len?\nx = 1",
        "%%time\nx = 1",
        "\n\n%%capture out --no-stderr\n%matplotlib inline\nx = 1",
        "%time x = 1",
        "get_ipython().events.register('a', print) if False else None\nx = 1",
        "get_ipython().ast_node_interactivity = 'all'\nx = 1",
        "display(1)\nx = 1",
        "import asyncio\nawait asyncio.sleep(0)\nx = 1",
        "    x = 1",
        ">>> x = 1",
    ],
)
def test_what_jupyter_understands_is_run_without_it(cell, tmp_path):
    path = tmp_path / "touched"
    assert names_after(cell.replace("{path}", str(path)))["x"] == 1
    assert not path.exists()


@pytest.mark.parametrize("cell", ["%%bash\nexit 1", "%%writefile a.py\nx = 1", "%%html\n<b>x</b>", "%%timeit\nx = 1"])
def test_a_cell_for_somebody_else_than_python_defines_nothing(cell):
    assert "x" not in names_after(cell)


def test_lines_stay_where_they_were():
    _, problems = run_cells(notebook("\n\n%%time\n%matplotlib inline\n\nraise KeyError"))
    assert problems == ["code cell 1 raised KeyError, at line 6: raise KeyError"]


def test_a_cell_has_only_the_futures_that_it_asks_for():
    """Annotations are what they say, not text: this file's own choice is not the student's."""
    assert names_after("def f(x: int): pass")["f"].__annotations__ == {"x": int}


def test_an_answer_with_a_magic_in_it_can_be_sent_to_a_rank():
    names = new_names()
    run_code(python_of("big = open(__import__('os').devnull)\ndef f():\n    %time 1\n    return 3"), "<cell 0>", names)
    assert cloudpickle.loads(cloudpickle.dumps(names["f"]))() == 3


def test_without_jupyter_a_line_that_begins_like_a_magic_is_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython.core.inputtransformer2", None)
    assert names_after("%matplotlib inline\nx = 2\n!ls")["x"] == 2
    assert names_after("x = (5\n % 3)")["x"] == 2


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text", [" \n" * 100_000, " \n" * 100_000 + "%x", "%a\n" * 40_000, "(" * 99_000, "x = (\n" + "%a\n" * 400]
)
def test_no_cell_takes_long_to_read(text):
    """A regular expression that was tried here once took 330 s for 200 kB of blank lines."""
    assert len(code_of(notebook(text))) == 1


def test_more_code_than_anybody_writes_is_refused_with_a_sentence():
    with pytest.raises(BadNotebook, match="characters of code"):
        code_of(notebook(*["x = 1\n" * 1000] * (MOST_CODE // 6000 + 1)))
