"""Two jobs never write into one folder of checkpoints: the second is refused by name, and the dead are recognised."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from course_lib import launch
from course_lib.command import main
from course_lib.train.checkpoint.files import LOCK, CheckpointError, latest_checkpoint, locked
from course_lib.train.checkpoint.save_and_load import writing_into
from course_lib.train.job import train_job
from course_lib.train.settings import BadSettings, Settings
from tests.conftest import PATIENCE, wait_until
from tests.train.test_job import SMALL, flags, started

pytest.importorskip("fcntl")
HERE = socket.gethostname()


def test_a_second_writer_is_refused_by_name_and_may_write_when_the_first_is_done(tmp_path):
    folder = tmp_path / "saved"
    with locked(folder):
        says = rf"in use by process {os.getpid()} on {HERE}: wait until it ends, or give .* remove {folder}/{LOCK}"
        with pytest.raises(CheckpointError, match=says), writing_into(folder):
            pass
        assert (folder / LOCK).exists()
    assert not folder.exists(), "nothing was saved in it"
    with locked(folder):
        (folder / "saved").touch()
    assert [path.name for path in folder.iterdir()] == ["saved"]


def test_a_process_of_this_machine_that_was_killed_holds_no_lock(tmp_path):
    held = (
        "from pathlib import Path; from course_lib.train.checkpoint.files import locked\n"
        f"with locked(Path({str(tmp_path)!r})): print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(CheckpointError, match=f"in use by process {child.pid} on {HERE}"), locked(tmp_path):
            pass
        child.kill()
    assert (tmp_path / LOCK).exists()
    with locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("left", ["process 7 on n7", "job 13, process 7 on n7", "process 7"])
def test_a_lock_that_another_machine_left_counts_until_somebody_removes_it(tmp_path, left):
    (tmp_path / LOCK).write_text(left)
    with (
        pytest.raises(CheckpointError, match=f"in use by {left}: .*if you know that it is dead, remove"),
        locked(tmp_path),
    ):
        pass
    assert (tmp_path / LOCK).read_text() == left


def test_a_job_that_was_started_again_elsewhere_takes_over_its_own_lock_and_no_other(tmp_path, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "n1", "MASTER_PORT": 20012}.items():
        monkeypatch.setenv(name, str(value))
    for name, value in {"TORCHELASTIC_RUN_ID": 12, "TORCHELASTIC_RESTART_COUNT": 0}.items():
        monkeypatch.setenv(name, str(value))
    (tmp_path / LOCK).write_text("job 12, process 7 on n7")
    with pytest.raises(CheckpointError, match="in use by job 12"), locked(tmp_path):
        pass
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with locked(tmp_path):
        assert (tmp_path / LOCK).read_text().startswith("job 12, process ")
    (tmp_path / LOCK).write_text("job 123, process 7 on n7")
    with pytest.raises(CheckpointError, match="in use by job 123"), locked(tmp_path):
        pass


def test_of_many_at_once_one_gets_it(tmp_path):
    got, together, done = [], threading.Barrier(8), threading.Barrier(8)

    def race(number: int) -> None:
        together.wait()
        try:
            with locked(tmp_path):
                got.append(number)
                done.wait()
        except CheckpointError:
            done.wait()

    racers = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert len(got) == 1


@pytest.mark.slow
def test_while_a_job_trains_a_second_one_is_refused(tmp_path, monkeypatch, capfd):
    run = flags(**SMALL, updates=1_000_000, every=5, checkpoint="saved", ranks=1)
    with started("single", *run, cwd=tmp_path):
        assert wait_until(lambda: latest_checkpoint(tmp_path / "saved"))
        monkeypatch.chdir(tmp_path)
        assert main(["train", "single", *run, "--resume"]) == 2
        assert "course: saved is in use by process" in capfd.readouterr().err
        settings = Settings(**SMALL, updates=1_000_000, checkpoint="saved", resume=True)
        with pytest.raises(Exception, match="saved is in use by process") as refused:
            launch(train_job, settings, ranks=1, timeout=PATIENCE)
        assert isinstance(refused.value.__cause__, BadSettings)
