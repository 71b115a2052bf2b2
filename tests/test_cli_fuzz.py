"""Hostile values for every option of every command, found by walking the parser: a new option is tried without a word.

A command may refuse or accept; it may not show a traceback, accept what is no number for a number, fail in silence,
take long, or leave files behind when it refuses.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from course_lib import cli, doctor, lab
from course_lib.checks import exercises
from course_lib.checks.report import Report
from course_lib.cli.arguments import Parser
from course_lib.launchers import torchrun
from course_lib.launchers.tracing.trace_file import write_trace
from course_lib.training.log import Log, Record

SECONDS = 5.0  # for one command
# A valid command: what stands for each argument that must be given. A new one of these needs a line here.
SAMPLES = {
    "target": "program.py:anything",
    "strategy": "single",
    "logs": "log.jsonl",
    "trace": "trace.json",
    "notebook": "02_ddp.ipynb",
    "submissions": "in",
    "folder": "in",
    "lesson": "00",
    "--into": "gathered",
    "--out": "new.png",
}
NEEDED = {("grade", "out"), ("collect", "into")}  # options that only other options make needless
NO_NUMBERS = ["", " ", "abc", "nan", "inf", "-inf", "-1", "-0.5", "1e300", "9" * 400, "1,5", "0x10", "--", "1;2", "½"]
ODD = [
    *("0", "1", "+3", "007", "1_0", "٣", "1.5", "1e3", "65536", "true", "None", "=", "a=b", "ranks=3", "%s %(prog)s"),
    *(
        ".",
        "..",
        "/",
        "/dev/null",
        "/dev/zero",
        "/dev/full",
        "~",
        "missing/x.png",
        "missing/",
        "x.unknown",
        "x.PNG",
        ".png",
    ),
    *(
        "binary",
        "folder",
        "log.jsonl",
        "folder.png",
        "empty",
        "a name.png",
        "ünï.png",
        "\u202egnp.x",
        "\udcff",
        "🙂",
        "a\nb",
    ),
    *("a" * 300, "b" * 5000, ":", "a:", ":b", "program.py:", "program.py:anything", "broken.py:f", "binary:f", "..:f"),
    *(
        "sqlite:///",
        "sqlite:///x.db",
        "$(touch pwned)",
        "; touch pwned",
        "-",
        "-x",
        "--help=3",
        "*",
        "[",
        "\\",
        "$x$",
        "\t",
    ),
]
SOUP = ["--", "-", "--=", "=", "-h=1", "--ranks", "--no-such", "run", "train", "x=1", "=1", "1=1", "--out", "--log"]


def commands() -> dict[str, argparse.ArgumentParser]:
    (found,) = (a for a in cli.make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(found.choices)


def sample(command: str) -> list[str]:
    """A valid command."""
    words = [command]
    for action in commands()[command]._actions:
        if isinstance(action, argparse._SubParsersAction):
            continue
        if action.option_strings and (action.required or (command, action.dest) in NEEDED):
            words.append(f"{action.option_strings[-1]}={SAMPLES[action.option_strings[-1]]}")
        elif not action.option_strings and action.nargs != "*":
            words.append(SAMPLES[action.dest])
    return words


def takes_numbers(action: argparse.Action) -> bool:
    """Whether the value is a number: then there is much that it cannot be."""
    try:
        return isinstance(action.type("1") if callable(action.type) else None, int | float)
    except argparse.ArgumentTypeError:
        return False


def cases(command: str) -> Iterator[tuple[list[str], bool]]:
    """Commands with one hostile value each, and whether it must be refused."""
    whole = sample(command)
    for action in commands()[command]._actions:
        if isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
            continue
        numeric, flag = takes_numbers(action), action.nargs == 0
        for value in [*NO_NUMBERS, *ODD[: 20 if numeric or flag else None]]:
            must_refuse = numeric and value in NO_NUMBERS
            if flag:
                yield [*whole, f"{action.option_strings[0]}={value}"], True  # a flag takes none
            elif action.option_strings:
                needs = ["--slurm"] if action.dest in cli.training.SLURM_OPTIONS else []
                yield [*whole, *needs, f"{action.option_strings[-1]}={value}"], must_refuse
            elif action.nargs == "*":
                yield [*whole, value], False
            else:
                yield [value if word == SAMPLES[action.dest] else word for word in whole], must_refuse


def mixtures(command: str, how_many: int, seed: int = 0) -> Iterator[list[str]]:
    """Several options at once, with good and hostile values, and words that make no sense at all."""
    chance = random.Random(f"{command} {seed}")
    options = [action for action in commands()[command]._actions if action.option_strings and action.nargs != "help"]
    for _ in range(how_many):
        words = sample(command)
        for action in chance.choices(options, k=chance.randint(1, 4)):
            name, value = chance.choice(action.option_strings), chance.choice([*NO_NUMBERS, *ODD, "1", "2"])
            words += [name] if action.nargs == 0 else chance.choice([[name, value], [f"{name}={value}"], [name]])
        words += chance.choices([*SOUP, *ODD], k=chance.choice([0, 0, 1, 2]))
        if chance.random() < 0.2:
            chance.shuffle(words)
        yield [word for word in words if word not in ("-h", "--help")]


class Opened(Exception):
    """JupyterLab, or a class, would be running now."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with something of every kind in it, and commands that do all but the long part of their work."""
    (tmp_path / "program.py").write_text("def anything(**given):\n    return 1\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "binary").write_bytes(b"\x00\xff\x00")
    (tmp_path / "empty").write_text("")
    for name in ("folder", "folder.png", "in/somebody", "work/.course"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "02_ddp.ipynb").write_text(json.dumps({"cells": [{"cell_type": "code", "source": CELL}]}))
    shutil.copy(tmp_path / "02_ddp.ipynb", tmp_path / "in" / "somebody")
    Log(tmp_path / "log.jsonl").append([Record(1, 1.0, 1.0, 1.0)])
    write_trace(tmp_path / "trace.json", 1, [])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("HOME", str(tmp_path / "folder"))
    monkeypatch.setattr(cli, "make_parser", cache(cli.make_parser))
    for place, stub in STUBS.items():
        monkeypatch.setattr(place, stub)
    return tmp_path


CELL = "def average_gradients(model):\n    pass\n"


def stub_of_launch(fn, *args, ranks, timeout=60.0, on=None, **kwargs):
    return torchrun.Run(({"updates": 1, "loss": 0.0, "tokens per second": 1.0},), 0.0)


def opens(*_, **__):
    raise Opened


# The long part of each command's work.
STUBS = {
    **dict.fromkeys([f"course_lib.cli.{group}.warm_up" for group in ("desk", "grading", "training")], lambda: None),
    "course_lib.launchers.torchrun.launch": stub_of_launch,
    "course_lib.training.job.launch": stub_of_launch,
    "course_lib.doctor.examine": doctor.MachineReport,
    "course_lib.doctor.MachineReport.__str__": lambda _: "",
    "course_lib.doctor.health.examine_ranks": lambda *_, **__: opens(),
    "course_lib.lab.open_lab": opens,
    "course_lib.lab.update_desk": lambda _: "",
    "course_lib.checks.check": lambda number, _: Report(exercises()[number]),
    "course_lib.grading.grader.grade": lambda **_: "",
    "course_lib.classroom.exchange.release": lambda *_: [],
    "course_lib.classroom.exchange.collect": lambda *_: "",
    "course_lib.classroom.server.serve": opens,
    "course_lib.classroom.server.hub.serve_in_hub": opens,
    "course_lib.classroom.slides.slides_page": lambda *_: "",
    "course_lib.pictures.picture.Picture.save": lambda self, path: Path(path).write_text(""),
}


def trouble(folder: Path, words: list[str], must_refuse: bool = False) -> str | None:
    """What is wrong with how a command takes these words, if anything is."""
    before, began, path, modules = files(folder), time.monotonic(), list(sys.path), set(sys.modules)
    status, told = outcome(words)
    seconds, after = time.monotonic() - began, files(folder)
    sys.path[:] = path
    for name in {"program", "broken", "binary"} & (set(sys.modules) - modules):
        del sys.modules[name]
    for file in after - before:
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
    found = judge(status, told, must_refuse, seconds, {file.name for file in after - before})
    return found and f"{[word[:80] for word in words]}: {found}"


def judge(status: int | str, told: str, must_refuse: bool, seconds: float, left: set[str]) -> str | None:
    if not isinstance(status, int):
        return status
    if status not in (0, 1, 2):
        return f"exit status {status}"
    if must_refuse and status != 2:
        return f"a bad value ended with status {status}"
    if status and not told.startswith("course: "):
        return f"status {status}, and it said {told!r}"
    if status == 2 and len(told.splitlines()) != 1:
        return f"more than a sentence: {told!r}"
    if "Traceback" in told:
        return told
    if status and left:
        return f"status {status}, and it left {left}"
    return f"it took {seconds:.1f} s" if seconds > SECONDS else None


def outcome(words: list[str]) -> tuple[int | str, str]:
    """The exit status, or the traceback of what came out instead; and what was said."""
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        try:
            status: int | str = cli.main(words)
        except Opened:
            status = 0
        except BaseException:
            status = traceback.format_exc()
    return status, told.getvalue()


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.parametrize("command", commands())
def test_the_sample_of_each_command_is_valid(folder, command):
    status, told = outcome(sample(command))
    assert status == 0, told


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_no_value_of_any_option_gets_more_or_less_than_a_sentence(folder, command):
    found = [trouble(folder, words, must_refuse) for words, must_refuse in cases(command)]
    assert [each for each in found if each] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_no_mixture_of_options_does(folder, command):
    found = [trouble(folder, words) for words in mixtures(command, how_many=100)]
    assert [each for each in found if each] == []


def test_no_words_without_a_command_do(folder):
    chance = random.Random(0)
    found = [trouble(folder, chance.choices([*SOUP, *ODD], k=chance.randint(0, 4))) for _ in range(150)]
    assert [each for each in found if each] == []


@pytest.mark.slow
def test_the_real_command_refuses_as_its_function_does(folder):
    """Without stubs, in a process of its own."""
    chance = random.Random(0)
    numbers = [words for command in commands() for words, must_refuse in cases(command) if must_refuse]
    for words in [
        *chance.sample(numbers, 20),
        ["frobnicate"],
        ["run", "broken.py:f"],
        ["run", "binary:f"],
        ["check", "binary"],
    ]:
        done = subprocess.run(
            [sys.executable, "-m", "course_lib", *words], cwd=folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == (1 if words[-1] == "broken.py:f" else 2), (words, done.stderr)
        assert done.stderr.startswith("course: "), words
        assert "Traceback" not in done.stderr, words


def plain_port(**option) -> Callable[[], Parser]:
    """A parser whose --port is like that."""

    def make() -> Parser:
        parser = Parser(prog="course")
        command = parser.add_subparsers().add_parser("lab")
        command.add_argument("--port", **option)
        command.set_defaults(run=cli.desk._lab, no_browser=True, desk=None, class_=None, code=None, name=None)
        return parser

    return make


def test_a_number_that_nobody_checks_is_noticed(folder, monkeypatch):
    monkeypatch.setattr(cli, "make_parser", plain_port(type=int))
    found = [trouble(folder, words, must_refuse) for words, must_refuse in cases("lab")]
    assert any("'--port=-1'" in each and "a bad value ended with status 0" in each for each in found if each)


def test_an_exception_is_noticed(folder, monkeypatch):
    monkeypatch.setattr(lab, "open_lab", lambda **_: [][0])
    assert "IndexError" in (trouble(folder, ["lab"]) or "")


def test_a_file_left_by_a_command_that_failed_is_noticed(folder, monkeypatch):
    def leaves_one(**_):
        Path("half").write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(lab, "open_lab", leaves_one)
    assert "it left {'half'}" in (trouble(folder, ["lab"]) or "")
    assert not os.path.exists("half")


@pytest.mark.parametrize(
    ("status", "told", "seconds", "says"),
    [
        (1, "", 0.0, "it said ''"),
        (2, "course: one\ncourse: two\n", 0.0, "more than a sentence"),
        (1, "course: CannotImport\nTraceback (most", 0.0, "Traceback"),
        (0, "", 6.0, "it took 6.0 s"),
        (3, "course: odd\n", 0.0, "exit status 3"),
        (2, "course: give a number\n", 0.0, None),
    ],
)
def test_silence_chatter_slowness_and_odd_statuses_are_noticed(status, told, seconds, says):
    found = judge(status, told, must_refuse=False, seconds=seconds, left=set())
    assert found is None if says is None else says in (found or "")
