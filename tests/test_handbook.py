"""The commands that README and handbook print: every one is understood, and what can run here is run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lib.command import make_parser

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/handbook/*.md", "docs/teaching/README.md", "docs/deploy/*.md")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TORCHRUN = f"{sys.executable} -m torch.distributed.run"
FEWER = "--updates 6 --hidden 8"

# What each command that is run here gets beside its own words, so that it takes seconds.
RUN = {
    "course train pipeline --ranks 4 --checkpoint saved --log run.jsonl": FEWER,
    "torchrun --nproc-per-node 4 --max-restarts 3 -m course_lib train hybrid replicas=2 "
    "--checkpoint saved_hybrid --resume": FEWER,
    "course run my_file.py:my_function --ranks 2 strategy=ddp updates=50": "",
    "torchrun --nproc-per-node 2 -m course_lib run my_file.py:my_function strategy=ddp updates=50": "",
    "course train ddp --ranks 4 --data my.txt": FEWER,
    "course train ddp --ranks 4 --model mine.py:blocks --data mine.py:data --batch 64": FEWER,
    "course train ddp --ranks 4 --updates 20 --profile run.json": "--hidden 8",
    "course stragglers run.json --out timeline.png": "",
    "course doctor": "",
    "course train tensor --ranks 4 --model gpt --data text": FEWER,
    "course agenda --plan two_days --date 2027-03-01": "",
    "course slides 06 --out 06.html": "",
    "course release handouts --lessons 02 03": "",
}
# The others, and where they are tried.
ELSEWHERE = {
    "course lab": "tests/browser",
    "course update": "tests/lab",
    "course class": "tests/classroom",
    "course collect": "tests/grading",
    "course grade": "tests/checks/test_grading.py",
    "course doctor --ranks": "tests/doctor: it says that a busy machine's ranks are slow",
    "torchrun --nproc-per-node 4 -m course_lib doctor": "tests/doctor",
    "course train hybrid replicas=4 --slurm": "tests/jobs, on two nodes of one core",
    "torchrun --nnodes 2": "tests/jobs, on two hosts of one core",
}
MINE = """
from course_lib.core.adding import AddingProblem
from course_lib.core.model import lstm_model

def my_function(strategy, updates):
    return strategy, updates

def blocks(hidden):
    return list(lstm_model(features=2, hidden=hidden, layers=2, outputs=1).blocks.values())

def data():
    return AddingProblem(640, lengths=(5, 9))
"""


def printed() -> Iterator[str]:
    """Yield every command of the course in a block of code, without its comment."""
    for page in (path for pattern in PAGES for path in sorted(ROOT.glob(pattern))):
        blocks = FENCE.findall(page.read_text())
        for block in (block for language, block in blocks if language in ("", "bash", "sh", "console")):
            for line in block.replace("\\\n", "").splitlines():
                command = line.partition("  #")[0].strip()
                if command.startswith("course ") or "-m course_lib " in command:
                    yield re.sub(r"\s+", " ", command)


COMMANDS = list(dict.fromkeys(printed()))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_printed_command_is_understood(command):
    outside, _, words = command.rpartition("-m course_lib ") if "-m course_lib " in command else ("", "", command[7:])
    _, rest = make_parser().parse_known_args(shlex.split(words))
    assert not [word for word in rest if word.startswith("-")]
    if outside.startswith("torchrun"):
        from torch.distributed.run import get_args_parser

        get_args_parser().parse_args([*shlex.split(outside)[1:], "-m", "course_lib"])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_printed_command_is_tried(command):
    assert command in RUN or any(command.startswith(known) for known in ELSEWHERE)


@pytest.mark.slow
def test_what_is_printed_can_be_run(tmp_path):
    assert set(RUN) <= set(COMMANDS), "no longer printed"
    (tmp_path / "my.txt").write_text("A rank reads a sentence, and waits for the others. " * 40)
    (tmp_path / "mine.py").write_text(MINE)
    shutil.copy(tmp_path / "mine.py", tmp_path / "my_file.py")
    for command, more in RUN.items():
        words = (
            command.replace("course ", f"{sys.executable} -m course_lib ", 1) if command[:7] == "course " else command
        )
        words = words.replace("torchrun ", f"{TORCHRUN} --standalone ", 1)
        done = subprocess.run(shlex.split(f"{words} {more}"), cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{command} {more}\n{done.stdout}\n{done.stderr}"
