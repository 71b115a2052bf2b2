"""Every bad argument of a `course` command is a sentence, and what is good reaches what it is for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from course_lib import command as cli
from course_lib import lab
from course_lib.checks.catalog import exercises
from course_lib.checks.report import Report
from course_lib.command import main
from course_lib.launcher.jobs import target, torchrun
from course_lib.launcher.jobs.target import BadJob, CannotImport
from course_lib.launcher.notebook.launch import MAX_TIMEOUT
from course_lib.train.log import Log, Record
from course_lib.train.losses_picture import draw_losses
from course_lib.train.settings import Settings

PROGRAM = """
import sys

AT_IMPORT = list(sys.argv)

def anything(**given):
    return given

def typed(steps, rate=0.1):
    return steps, rate

def words():
    return AT_IMPORT, sys.argv

def meet(**given):
    import torch.distributed as dist

    dist.barrier()
    return given, sys.argv
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("def load():\n    import no_such_module\n\nload()\n")
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "file").write_text("hello\n")
    yield tmp_path
    for name in ("program", "broken", "leaves"):
        sys.modules.pop(name, None)


@pytest.fixture
def launched(monkeypatch):
    """What would have been launched; the first rank's turn is taken here."""
    seen = []

    def launch(fn, *args, ranks, timeout=60.0, on=None, profile=False, **kwargs):
        seen.append({"value": fn(*args, **kwargs), "ranks": ranks, "timeout": timeout, "on": on})
        return torchrun.Run((seen[-1]["value"],), 0.0)

    monkeypatch.setattr(torchrun, "launch", launch)
    monkeypatch.setattr(cli.training, "warm_up", lambda: None)
    return seen


BAD = {
    "check -- file": "only `course run` takes arguments after --",
    "check .": ". is not a notebook: there is no such file",
    "collect file --into in --students .": "--students .: this is not a file; give one with a name on each line",
    "doctor --out a.png": "--out is for a measurement of ranks; add --ranks N",
    "grade in --out in/grades": "--out in/grades lies in in",
    "grade in --out grades --gradebook nonsense": "--gradebook nonsense: Could not parse",
    "lab --desk .": ". has other files in it: give --desk a folder that is new or empty",
    "plot /dev/zero --out a.png": "/dev/zero cannot be read: give the file that `course train --log FILE` wrote",
    "plot file --out a.docx": "--out a.docx: give the name of a file that ends in .png or .svg or .pdf or .jpg",
    "run program.py:anything --nodes 3": "--nodes is for a Slurm cluster; add --slurm, or leave it out",
    "run program.py:anything --ranks 65": "--ranks 65: give a number of ranks from 1 to 64",
    "run program.py:anything --slurm --ranks 3": "ranks=3: 2 nodes with 8 ranks each are 16 ranks",
    "run program.py:typed stps=3": "got an unexpected keyword argument 'stps'; the function takes steps, rate",
    "stragglers file": "file is not a trace from this course: give a trace that run.trace(FILE) or",
    "train ddp --hidden 99999999": "TiB of memory, and this machine has",
    "train ddp --log missing/a.jsonl": "missing/a.jsonl cannot be written (there is no folder missing)",
    "train ddp --resume --checkpoint new": "there is no checkpoint in new: leave out --resume",
    "train ddp --checkpoint file": "file cannot be created (file is a file): give another folder",
    "train ddp --data missing.txt": "missing.txt cannot be read (No such file or directory): give the path of a UTF-8",
    "train magic": "strategy=magic: choose single, ddp",
    "train leaves.py:Mine": "strategy leaves.py:Mine: leaves.py exits while it is being imported",
    "update": "there is no desk at",
}


@pytest.mark.parametrize(("command", "says"), BAD.items(), ids=BAD)
def test_a_bad_argument_gets_one_sentence_and_leaves_nothing_behind(folder, monkeypatch, capsys, command, says):
    monkeypatch.setattr(lab.os, "execve", lambda *_: pytest.fail("the lab has opened"))
    monkeypatch.setattr(torchrun, "launch", lambda *_, **__: pytest.fail("ranks were started"))
    monkeypatch.setattr(cli.training, "warm_up", lambda: None)
    (folder / "in" / "somebody").mkdir(parents=True)
    (folder / "in" / "somebody" / "02_ddp.ipynb").write_text("{}")
    before = files(folder)
    assert main(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("course: ")
    assert says in line
    assert files(folder) == before


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.mark.parametrize(
    "name", ["ranks", "timeout", "on", "fn", "args", "kwargs", "record", "profile", "peer_timeout", "class"]
)
def test_an_argument_of_any_name_reaches_the_function(launched, name):
    assert main(["run", "program.py:anything", f"{name}=3", "--ranks", "1"]) == 0
    assert launched == [{"value": {name: 3}, "ranks": 1, "timeout": 60.0, "on": None}]


def test_words_behind_two_dashes_are_the_functions_own(launched):
    assert main(["run", "program.py:words", "--ranks", "1", "--", "--lr", "3", "--", "--help"]) == 0
    assert launched[0]["value"] == (["program.py", "--lr", "3", "--", "--help"],) * 2


@pytest.mark.parametrize("words", [[], ["--"]])
def test_without_any_the_file_is_all_that_the_function_sees(launched, words):
    assert main(["run", "program.py:words", *words]) == 0
    assert launched[0]["value"] == (["program.py"],) * 2


@pytest.mark.parametrize("text", ["{[]: 1}", "(" * 5000, "-" * 100_000 + "1", "'\\d'", "9" * 5000, "\udcff", "$(ls)"])
def test_what_is_no_literal_is_text(recwarn, text):
    assert isinstance(target.parse([f"x={text}"])["x"], str)
    assert not recwarn.list


def test_a_file_that_cannot_be_imported_is_told_in_its_own_lines(capsys):
    assert main(["run", "broken.py:load"]) == 1
    told = capsys.readouterr().err
    assert told.startswith(
        "course: CannotImport: broken.py cannot be imported: it raises ModuleNotFoundError: No module"
    )
    assert "line 4, in <module>\n    load()\n" in told
    assert "    import no_such_module" in told
    assert "course_lib" not in told
    assert "importlib" not in told


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (b"def f(:\n", "SyntaxError: invalid syntax"),
        (b"\0\xff", "cannot be imported"),
        (b"import sys\nsys.exit(0)\n", "exits while it is being imported"),
    ],
)
def test_so_are_files_of_other_kinds(folder, source, says):
    (folder / "broken.py").write_bytes(source)
    with pytest.raises(CannotImport, match=says):
        target.find_function("broken.py:f")


def test_a_package_that_misses_another_is_not_said_to_be_missing(folder):
    (folder / "half").mkdir()
    (folder / "half" / "__init__.py").write_text("import no_such_module")
    sys.path.insert(0, str(folder))
    with pytest.raises(CannotImport, match="No module named 'no_such_module'"):
        target.find_function("half.part:f")
    with pytest.raises(BadJob, match="no such file or module"):
        target.find_function("no_such_package.part:f")


@pytest.mark.parametrize("words", [["run", "program.py:anything", "--slurm"], ["train", "ddp", "--slurm"]])
def test_no_patience_is_endless_patience_on_a_cluster(words):
    options = cli.make_parser().parse_args([*words, "--peer-timeout", "0"])
    place = cli.training.place_of(options)
    assert place is not None
    assert place.peer_timeout == options.peer_timeout == MAX_TIMEOUT


def test_more_ranks_than_one_machine_has_room_for_fit_a_cluster():
    options = cli.make_parser().parse_args(["run", "f.py:f", "--slurm", "--nodes", "16", "--ranks", "128"])
    place = cli.training.place_of(options)
    assert place is not None
    assert place.ranks == 128


def test_a_slurm_option_cannot_smuggle_a_line_into_the_script(capsys):
    assert main(["run", "program.py:anything", "--slurm", "--partition", "a\nrm -rf"]) == 2
    assert "give one line of text" in capsys.readouterr().err


@pytest.mark.slow
def test_under_torchrun_too_and_endless_patience_is_a_time_that_pytorch_takes(folder):
    torchruns = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
    names = [f"{name}=3" for name in ("fn", "peer_timeout", "record", "show")]
    words = ["run", "program.py:meet", *names, "--peer-timeout", "0", "--", "--log", "3"]
    done = course(*words, cwd=folder, launcher=torchruns)
    given = {"fn": 3, "peer_timeout": 3, "record": 3, "show": 3}
    assert f"rank 0 returned ({given}, ['program.py', '--log', '3'])" in done.stdout, done.stderr


def course(*arguments: str, cwd: Path, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    command = [sys.executable, *launcher, "-m", "course_lib", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100)


def test_an_interrupt_beside_a_damaged_checkpoint_is_still_an_interrupt(folder):
    from course_lib.train.job import resume_hint

    (folder / "saved" / "update-00000005").mkdir(parents=True)
    (folder / "saved" / "update-00000005" / "training.json").write_text("")
    assert resume_hint(Settings(checkpoint="saved")) == ""


def test_every_log_gets_a_curve_and_a_name_that_is_no_mathematics(folder):
    paths = ["r1/$run$.jsonl", "r2/$run$.jsonl", "other.jsonl", "./other.jsonl"]
    for path in paths:
        Path(path).parent.mkdir(exist_ok=True)
        Log(path).append([Record(1, 1.0, 1.0, 1.0)])
    picture = draw_losses(*paths)
    assert repr(picture).endswith(": r1/$run$.jsonl, r2/$run$.jsonl, other")
    assert len(picture.figure.axes[0].lines) == 3
    assert main(["plot", *paths, "--out", "loss.png"]) == 0


def notebook_of(*sources: str) -> dict:
    return {"cells": [{"cell_type": "code", "source": source} for source in sources]}


def test_a_scratch_cell_that_raises_costs_no_answer(folder, monkeypatch, capsys):
    monkeypatch.setattr("course_lib.checks.check", lambda number, answer: Report(exercises()[number]))
    monkeypatch.setattr(cli.grading, "warm_up", lambda: None)
    answers = [f"def {e.answer}(*_): pass" for e in exercises().values() if e.lesson == "02"]
    file = folder / "02_mine.ipynb"
    file.write_text(json.dumps(notebook_of("x = 1\nx / 0", "exit()", *answers)))
    assert main(["check", str(file)]) == 0
    told = capsys.readouterr().out
    assert "code cell 1 raised ZeroDivisionError: division by zero, at line 2: x / 0" in told
    assert "code cell 2 raised " in told
    file.write_text(json.dumps(notebook_of("def f(:", *answers[1:])))
    assert main(["check", str(file)]) == 1
    told = capsys.readouterr().out
    assert "code cell 1 raised SyntaxError" in told
    assert "02.1 Average the gradients by hand: not checked, because no cell has defined average_gradients" in told


@pytest.mark.parametrize("command", ["doctor", "train ddp"])
def test_a_folder_that_is_gone_gets_a_sentence(folder, monkeypatch, capsys, command):
    (folder / "gone").mkdir()
    monkeypatch.chdir(folder / "gone")
    (folder / "gone").rmdir()
    assert main(command.split()) == 1
    assert capsys.readouterr().err == "course: the current folder no longer exists; change to another one with cd\n"


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (PermissionError(13, "Permission denied", "there"), 1, "course: there: Permission denied\n"),
        (OSError("odd"), 1, "course: odd\n"),
        (MemoryError(), 1, "course: there is not enough memory for that"),
        (KeyboardInterrupt(), 130, "course: interrupted\n"),
    ],
)
def test_what_the_system_refuses_is_a_sentence(monkeypatch, capsys, error, status, says):
    def fails(**_):
        raise error

    monkeypatch.setattr(lab, "open_lab", fails)
    assert main(["lab"]) == status
    assert capsys.readouterr().err.startswith(says)


def test_a_bug_of_ours_still_shows_itself(monkeypatch):
    monkeypatch.setattr(lab, "open_lab", lambda **_: [][0])
    with pytest.raises(IndexError):
        main(["lab"])


SLOW_IMPORT = (
    "import os, sys, time\nopen('ready', 'w').close()\ntry:\n    time.sleep(60)\nexcept BaseException:\n    pass\n"
)


def test_an_interrupt_ends_even_an_import_that_swallows_it(folder):
    (folder / "program.py").write_text(SLOW_IMPORT)
    command = [sys.executable, "-m", "course_lib", "run", "program.py:f"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (folder / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=20)[1] == "course: interrupted\n"
    assert process.returncode == 130
