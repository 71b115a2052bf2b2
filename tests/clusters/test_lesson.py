"""Lesson 09 shows the job script that the tool writes, and explains every line of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from course_lib.cli import main
from course_lib.course_files import Cell, read, source

LESSON = Path(__file__).parents[2] / "notebooks" / "09_real_clusters.ipynb"
WORDS = "train hybrid replicas=4 --slurm --nodes 2 --gpus-per-node 8 --memory 256G --time 4:00:00"


@pytest.fixture
def cells() -> dict[str, Cell]:
    return {cell["id"]: cell for cell in read(LESSON)["cells"]}


@pytest.fixture
def script(capsys) -> str:
    assert main([*WORDS.split(), "--checkpoint", "/shared/run17", "--resume", "--print"]) == 0
    return re.sub(r"\S*/bin/python\S*", "python", capsys.readouterr().out)


def test_the_lessons_script_is_what_the_tool_prints(cells, script):
    (shown,) = cells["slurm-script"]["outputs"]
    assert "".join(shown["text"]).strip() == script.strip()


def test_the_lesson_explains_every_option_and_variable_of_the_script(cells, script):
    table = source(cells["slurm-lines"])
    asked = re.findall(r"^#SBATCH (--[\w-]+)", script, flags=re.M)
    srun = re.search(r"^srun (.*)\\$", script, flags=re.M)
    set_there = re.findall(r"^export (\w+)=", script, flags=re.M)
    assert srun
    options = [*asked, *re.findall(r"--[\w-]+", srun[1])]
    assert {"--cpus-per-task", "--mem", "--signal", "--requeue", "--wait"} <= set(options)
    missing = [name for name in [*options, *set_there] if not re.search(rf"{name}(?![\w-])", table)]
    assert missing == []
