"""A log never spoils what is not a log: `--log` takes a new file, an empty one, or a log of an earlier run."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

from course_lib.cli import main
from course_lib.training.log import Log, LogError, Record, read_log
from tests.training.test_job import SMALL, flags

ONE = Record(1, 0.5, 100.0, 0.1)


@pytest.mark.parametrize("text", ["my notes\n", "my notes", "{}\n", '{"update": 1}\n', "\n", "\x00\xff"])
def test_a_file_with_something_else_in_it_is_refused_and_left_as_it_is(tmp_path, text):
    file = tmp_path / "notes.txt"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(LogError, match=r"notes.txt exists and is not a log: give --log another file"):
        Log(file)
    assert file.read_bytes() == text.encode("latin-1")


def test_a_folder_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(LogError, match=r"cannot be written \(there is no folder .*nosuch\): create it first"):
        Log(tmp_path / "nosuch" / "run.jsonl")
    assert not (tmp_path / "nosuch").exists()


def test_a_log_behind_which_somebody_has_written_is_refused(tmp_path):
    file = tmp_path / "run.jsonl"
    Log(file).append([ONE])
    with file.open("a") as open_file:
        open_file.write("and so on")
    with pytest.raises(LogError, match="exists and is not a log"):
        Log(file, after=1)


def test_a_device_and_a_pipe_are_refused_and_left_as_they_are(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull)):
        kind = stat.S_IFMT(path.stat().st_mode)
        with pytest.raises(LogError, match="exists and is not a log: give --log another file"):
            Log(path)
        assert stat.S_IFMT(path.stat().st_mode) == kind


def test_a_link_stays_a_link_and_its_file_is_what_counts(tmp_path):
    (tmp_path / "latest").symlink_to("run.jsonl")
    Log(tmp_path / "latest").append([ONE])
    assert (tmp_path / "latest").is_symlink()
    assert read_log(tmp_path / "run.jsonl") == [ONE]
    (tmp_path / "run.jsonl").write_text("my notes\n")
    with pytest.raises(LogError, match="exists and is not a log"):
        Log(tmp_path / "latest")


def test_files_beside_it_are_nobodys_business(tmp_path):
    (tmp_path / "run.jsonl.tmp").write_text("mine")
    Log(tmp_path / "run.jsonl").append([ONE])
    Log(tmp_path / "run.jsonl", after=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.jsonl", "run.jsonl.tmp"]
    assert (tmp_path / "run.jsonl.tmp").read_text() == "mine"


def test_the_command_refuses_before_it_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("my notes\n")
    assert main(["train", "single", *flags(**SMALL, log="notes.txt")]) == 2
    assert capsys.readouterr().err == "course: notes.txt exists and is not a log: give --log another file\n"


def test_a_full_disk_is_said_in_a_sentence(tmp_path):
    log = Log(tmp_path / "run.jsonl")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        with pytest.raises(LogError, match=r"run.jsonl cannot be written \(File too large\): give --log another file"):
            log.append([ONE])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
