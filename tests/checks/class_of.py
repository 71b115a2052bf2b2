"""Made-up classes to grade: notebooks with some cells replaced, and some put before the rest."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lib.checks.notebooks import answer_id
from course_lib.grading import sandbox
from course_lib.grading.grader import Grader
from course_lib.runtime.course_files import read, source

ROOT = Path(__file__).resolve().parent.parent.parent
SOLUTION = read(ROOT / "solutions" / "02_ddp.ipynb")
EXERCISE = read(ROOT / "exercises" / "02_ddp.ipynb")


def need_a_sandbox() -> None:
    """Skip where bubblewrap is missing or is not allowed to work. Where it works at all, ours must."""
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bwrap: apt-get install bubblewrap")
    plain = ["bwrap", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    tried = subprocess.run(plain, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"bubblewrap does not work here: {tried.stderr.strip()}")
    sandbox.check_sandbox()


def patient_grader(out: Path, **options) -> Grader:
    """A grader that gives submissions time enough on a busy machine."""
    grader = Grader(out, **options)
    grader.runs.limits = dataclasses.replace(grader.runs.limits, seconds=900)
    return grader


def with_answers(**answers: str) -> dict:
    """The exercises with some of the answer cells filled in: `with_answers(_1="def average_gradients...")`."""
    notebook = copy.deepcopy(EXERCISE)
    for name, text in answers.items():
        cell_of(notebook, f"02.{name[1:]}")["source"] = text
    return notebook


def with_first_cell(notebook: dict, text: str, last: str = "") -> dict:
    """A notebook with a code cell before all others, and one behind them."""
    made = copy.deepcopy(notebook)
    cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "id": "first"}
    made["cells"].insert(0, {**cell, "source": text})
    made["cells"].append({**cell, "id": "last", "source": last})
    return made


def cell_of(notebook: dict, number: str) -> dict:
    found = (c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == answer_id(number))
    return next(found)


def right_answers() -> str:
    """The solutions, as one piece of code."""
    return "\n".join(source(cell_of(SOLUTION, f"02.{number}")) for number in (1, 2, 3, 4))


def hand_in(folder: Path, student: str, notebook: dict | str, name: str = "02_ddp.ipynb") -> Path:
    """Put a notebook, or whatever the text is, where a student's belongs."""
    path = folder / student / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(notebook if isinstance(notebook, str) else json.dumps(notebook))
    return path


@contextlib.contextmanager
def busy(spinning: int, core: int | None = None) -> Iterator[None]:
    """Beside so many processes that do nothing but keep a core busy, or all of them."""
    loop = f"import os\nos.sched_setaffinity(0, [{core}])\n" if core is not None else ""
    spinners = [subprocess.Popen([sys.executable, "-S", "-c", loop + "while True: pass"]) for _ in range(spinning)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
