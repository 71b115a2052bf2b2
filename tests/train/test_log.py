"""A log never spoils what is not a log: `--log` takes a new file, an empty one, or a log of an earlier run."""

from __future__ import annotations

import json
import os
import resource
import stat
from dataclasses import asdict
from pathlib import Path

import pytest

from course_lib.command import main
from course_lib.train.log import Log, LogError, Record, read_log
from tests.train.test_job import SMALL, flags

ONE = Record(1, 0.5, 100.0, 0.1)
LINE = json.dumps(asdict(ONE) | {"mfu": 0.5}) + "\n"


@pytest.mark.parametrize("text", ["my notes\n", "{}\n", '{"update": 1}\n', "\n", "\x00\xff", f"{LINE}and so on"])
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
