"""Hostile values for every option of every command, found by walking the parser: a new option is tried without a word.

A command may refuse or accept; it may not show a traceback, accept what is no number for a number, fail in silence, or
leave files behind when it refuses. Commands that only read and write files run; of the others, arguments are parsed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from course_lib import command as cli
from course_lib.launcher.tracing.trace_file import write_trace
from course_lib.train.log import Log, Record

RUNS = ("agenda", "collect", "plot", "stragglers")  # neither ranks nor exercises: these run
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
    *(".", "..", "/", "/dev/null", "/dev/zero", "/dev/full", "~", "missing/x.png", "missing/", "x.unknown", "x.PNG"),
    *(".png", "binary", "folder", "log.jsonl", "folder.png", "empty", "a name.png", "ünï.png", "\u202egnp.x", "\udcff"),
    *("🙂", "a\nb", "a" * 300, "b" * 5000, ":", "a:", ":b", "program.py:", "program.py:anything", "broken.py:f"),
    *("..:f", "binary:f", "sqlite:///", "sqlite:///x.db", "$(touch pwned)", "; touch pwned", "-", "-x", "--help=3"),
    *("*", "[", "\\", "$x$", "\t"),
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


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with something of every kind in it."""
    (tmp_path / "program.py").write_text("def anything(**given):\n    return 1\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "binary").write_bytes(b"\x00\xff\x00")
    (tmp_path / "empty").write_text("")
    for name in ("folder", "folder.png", "in/somebody"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "02_ddp.ipynb").write_text('{"cells": []}')
    shutil.copy(tmp_path / "02_ddp.ipynb", tmp_path / "in" / "somebody")
    Log(tmp_path / "log.jsonl").append([Record(1, 1.0, 1.0, 1.0)])
    write_trace(tmp_path / "trace.json", 1, [])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "folder"))
    monkeypatch.setattr(cli, "make_parser", cache(cli.make_parser))
    parse = cli.parse

    def parse_only(words: list[str]) -> argparse.Namespace:
        options = parse(words)
        if words[0] not in RUNS:
            options.run = lambda _: 0
        return options

    monkeypatch.setattr(cli, "parse", parse_only)
    return tmp_path


def trouble(folder: Path, words: list[str], must_refuse: bool = False) -> str | None:
    """What is wrong with how a command takes these words, if anything is."""
    before = set(folder.rglob("*"))
    status, told = outcome(words)
    left = set(folder.rglob("*")) - before
    for file in left:
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
    found = judge(status, told, must_refuse, {file.name for file in left})
    return found and f"{[word[:80] for word in words]}: {found}"


def judge(status: int | str, told: str, must_refuse: bool, left: set[str]) -> str | None:
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
    return f"status {status}, and it left {left}" if status and left else None


def outcome(words: list[str]) -> tuple[int | str, str]:
    """The exit status, or the traceback of what came out instead; and what was said."""
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        try:
            status: int | str = cli.main(words)
        except BaseException:
            status = traceback.format_exc()
    return status, told.getvalue()


@pytest.mark.parametrize("command", commands())
def test_the_sample_of_each_command_is_valid(command):
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
    """In a process of its own, and not parsed only."""
    numbers = [words for command in commands() for words, must_refuse in cases(command) if must_refuse]
    odd = [["frobnicate"], ["run", "broken.py:f"], ["run", "binary:f"], ["check", "binary"]]
    for words in [*random.Random(0).sample(numbers, 20), *odd]:
        done = subprocess.run(
            [sys.executable, "-m", "course_lib", *words], cwd=folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == (1 if words[-1] == "broken.py:f" else 2), (words, done.stderr)
        assert done.stderr.startswith("course: "), words
        assert "Traceback" not in done.stderr, words


@pytest.mark.parametrize(
    ("status", "told", "left", "says"),
    [
        ("IndexError", "", set(), "IndexError"),
        (0, "", set(), "a bad value ended with status 0"),
        (2, "", set(), "it said ''"),
        (2, "course: one\ncourse: two\n", set(), "more than a sentence"),
        (2, "course: Traceback (most", set(), "Traceback"),
        (3, "course: odd\n", set(), "exit status 3"),
        (2, "course: disk full\n", {"half"}, "it left {'half'}"),
        (2, "course: give a number\n", set(), None),
    ],
)
def test_silence_chatter_and_odd_statuses_are_noticed(status, told, left, says):
    found = judge(status, told, must_refuse=True, left=left)
    assert found is None if says is None else says in (found or "")
