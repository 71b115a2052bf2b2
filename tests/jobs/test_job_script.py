"""The handbook shows the job script that the tool writes, and explains every line of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from course_lib.command import main

PAGE = Path(__file__).parents[2] / "docs" / "handbook" / "clusters.md"
WORDS = "train hybrid replicas=4 --slurm --nodes 2 --gpus-per-node 8 --memory 256G --time 4:00:00"


@pytest.fixture
def section() -> str:
    return PAGE.read_text().partition("## The job script, line by line")[2].partition("\n## ")[0]


@pytest.fixture
def script(capsys) -> str:
    assert main([*WORDS.split(), "--checkpoint", "/shared/run17", "--resume", "--print"]) == 0
    return re.sub(r"\S*/bin/python\S*", "python", capsys.readouterr().out)


def test_the_pages_script_is_what_the_tool_prints(section, script):
    _, shown, _ = section.split("```")
    assert shown.removeprefix("text").strip() == script.strip()


def test_the_page_explains_every_option_and_variable_of_the_script(section, script):
    table = section.split("```")[2]
    asked = re.findall(r"^#SBATCH (--[\w-]+)", script, flags=re.M)
    srun = re.search(r"^srun (.*)\\$", script, flags=re.M)
    set_there = re.findall(r"^export (\w+)=", script, flags=re.M)
    assert srun
    options = [*asked, *re.findall(r"--[\w-]+", srun[1])]
    assert {"--cpus-per-task", "--mem", "--signal", "--requeue", "--wait"} <= set(options)
    missing = [name for name in [*options, *set_there] if not re.search(rf"{name}(?![\w-])", table)]
    assert missing == []
