"""Two jobs never write into one folder of checkpoints: the second is refused by name, and the dead are recognised."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from course_lib import launch
from course_lib.cli import main
from course_lib.training.checkpoint import lock as checkpoint_lock
from course_lib.training.checkpoint.folder import CheckpointError, latest_checkpoint
from course_lib.training.checkpoint.lock import (
    GONE_AFTER,
    Writer,
    WriterLock,
    acquire_lock,
    check_unlocked,
    this_writer,
)
from course_lib.training.job import train_job
from course_lib.training.settings import BadSettings, Settings
from tests.conftest import PATIENCE, wait_until
from tests.training.test_job import SMALL, flags, started

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")

ELSEWHERE = {"host": "n7", "machine": "another"}


def leave_lock(folder: Path, writer: Writer, age: float = 0.0, number: int = 1) -> Path:
    """The lock of somebody who has renewed it that many seconds ago."""
    folder.mkdir(exist_ok=True)
    path = folder / f"writer-{number}.lock"
    path.write_text(json.dumps(asdict(writer)))
    os.utime(path, (time.time() - age,) * 2)
    return path


def locks_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_second_writer_is_refused_by_name_and_may_write_when_the_first_is_done(tmp_path):
    folder = tmp_path / "saved"
    first, nobody = acquire_lock(folder)
    with pytest.raises(CheckpointError, match=rf"is in use by process {os.getpid()} on .*wait until it ends, or give"):
        acquire_lock(folder)
    with pytest.raises(CheckpointError, match=rf"remove {folder}/writer-1.lock"):
        check_unlocked(folder)
    assert nobody == ""
    first.release()
    assert not folder.exists(), "nothing was saved in it"
    acquire_lock(folder)[0].release()


def test_a_dead_process_of_this_machine_is_known_to_be_dead(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    leave_lock(tmp_path, replace(this_writer(), process=child.pid))
    lock, from_whom = acquire_lock(tmp_path)
    assert from_whom.startswith(f"process {child.pid} on ")
    lock.release()
    assert locks_in(tmp_path) == []


def test_a_process_number_that_was_given_out_again_is_somebody_else(tmp_path):
    leave_lock(tmp_path, replace(this_writer(), began="1"))
    acquire_lock(tmp_path)


def test_a_zombie_writes_no_more(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    stat = Path(f"/proc/{child.pid}/stat")
    began = stat.read_text().rpartition(")")[2].split()[19]
    assert wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
    leave_lock(tmp_path, replace(this_writer(), process=child.pid, began=began))
    acquire_lock(tmp_path)
    child.wait()


def test_of_another_machine_the_last_renewal_decides(tmp_path):
    far = replace(this_writer(), **ELSEWHERE)
    path = leave_lock(tmp_path, far, age=GONE_AFTER / 2)
    with pytest.raises(CheckpointError, match=r"is in use by process \d+ on n7 \(last seen 450 s ago\)"):
        acquire_lock(tmp_path)
    path.unlink()
    leave_lock(tmp_path, far, age=2 * GONE_AFTER)
    assert "on n7" in acquire_lock(tmp_path)[1]


def test_a_job_that_was_started_again_takes_over_its_own_lock_and_no_other(tmp_path, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "n1", "MASTER_PORT": 20012}.items():
        monkeypatch.setenv(name, str(value))
    for name, value in {"TORCHELASTIC_RUN_ID": 12, "SLURM_JOB_ID": 12, "TORCHELASTIC_RESTART_COUNT": 1}.items():
        monkeypatch.setenv(name, str(value))
    ours = this_writer()
    assert (ours.job, ours.restarts) == ("Slurm job 12", 1)
    leave_lock(tmp_path, replace(ours, restarts=0, **ELSEWHERE))
    lock, from_whom = acquire_lock(tmp_path)
    assert from_whom.startswith("Slurm job 12, process ")
    lock.release()
    leave_lock(tmp_path, replace(ours, restarts=0, job="Slurm job 13", **ELSEWHERE))
    with pytest.raises(CheckpointError, match="is in use by Slurm job 13, process"):
        acquire_lock(tmp_path)


def test_a_lock_without_a_name_in_it_counts_until_it_is_old(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_lock, "NAMED_WITHIN", 0.01)
    path = tmp_path / "writer-1.lock"
    path.touch()
    with pytest.raises(CheckpointError, match="is in use by a process that has not written its name"):
        acquire_lock(tmp_path)
    os.utime(path, (1, 1))
    acquire_lock(tmp_path)


def somebody_is_faster(monkeypatch, folder: Path, forget: Path | None = None) -> list[WriterLock]:
    """When the next writer has looked around, and before it makes its lock, another one comes and gets the folder."""
    make, faster = checkpoint_lock._create, []

    def late(path, writer):
        if not faster:
            if forget:
                forget.unlink()
            monkeypatch.setattr(checkpoint_lock, "_create", make)
            faster.append(acquire_lock(folder)[0])
        return make(path, writer)

    monkeypatch.setattr(checkpoint_lock, "_create", late)
    return faster


def test_between_a_look_and_a_lock_somebody_may_be_faster(tmp_path, monkeypatch):
    faster = somebody_is_faster(monkeypatch, tmp_path)
    with pytest.raises(CheckpointError, match="is in use by process"):
        acquire_lock(tmp_path)
    faster[0].check()
    assert locks_in(tmp_path) == ["writer-1.lock"]


def test_a_dead_writers_lock_may_be_somebody_elses_by_now(tmp_path, monkeypatch):
    dead = leave_lock(tmp_path, replace(this_writer(), began="1"))
    faster = somebody_is_faster(monkeypatch, tmp_path, forget=dead)  # it was given back, and the number used again
    with pytest.raises(CheckpointError, match="is in use by process"):
        acquire_lock(tmp_path)
    faster[0].check()
    assert locks_in(tmp_path) == ["writer-1.lock"]


def test_of_many_at_once_one_gets_it(tmp_path):
    got, together = [], threading.Barrier(8)

    def race() -> None:
        together.wait()
        with contextlib.suppress(CheckpointError):
            got.append(acquire_lock(tmp_path)[0])

    leave_lock(tmp_path, replace(this_writer(), began="1"))
    racers = [threading.Thread(target=race) for _ in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert len(got) == 1
    got[0].check()


def test_a_lock_with_the_same_number_is_not_the_same_lock(tmp_path):
    first, _ = acquire_lock(tmp_path)
    first.path.unlink()
    second, _ = acquire_lock(tmp_path)
    assert second.path == first.path
    with pytest.raises(CheckpointError, match="was taken over by process"):
        first.check()
    first.release()
    second.check()


def test_who_was_taken_over_saves_nothing_more(tmp_path):
    first, _ = acquire_lock(tmp_path)
    first.check()
    os.utime(first.path, (1, 1))
    later = replace(first.writer, **ELSEWHERE)  # as the first looks from another machine
    first.path.write_text(json.dumps(asdict(later)))
    os.utime(first.path, (1, 1))
    second, _ = acquire_lock(tmp_path)
    with pytest.raises(CheckpointError, match=r"was taken over by process .*: it saves nothing more"):
        first.check()
    first.release()
    second.check()


def test_the_training_loop_renews_its_lock(tmp_path, monkeypatch):
    lock, _ = acquire_lock(tmp_path)
    os.utime(lock.path, (1, 1))
    lock.renew()
    assert lock.path.stat().st_mtime == 1, "not at every update"
    monkeypatch.setattr(checkpoint_lock, "RENEW_EVERY", 0.0)
    lock.renew()
    assert lock.path.stat().st_mtime > 1


@pytest.mark.slow
def test_while_a_job_trains_a_second_one_is_refused_and_after_a_kill_it_takes_over(tmp_path, monkeypatch, capfd):
    run = flags(**SMALL, updates=1_000_000, every=5, checkpoint="saved", ranks=1)
    with started("single", *run, cwd=tmp_path) as process:
        assert wait_until(lambda: latest_checkpoint(tmp_path / "saved"))
        monkeypatch.chdir(tmp_path)
        assert main(["train", "single", *run, "--resume"]) == 2
        assert "course: saved is in use by process" in capfd.readouterr().err
        settings = Settings(**SMALL, updates=1_000_000, checkpoint="saved", resume=True)
        with pytest.raises(Exception, match="saved is in use by process") as refused:  # by the job itself, too
            launch(train_job, settings, ranks=1, timeout=PATIENCE)
        assert isinstance(refused.value.__cause__, BadSettings)
        process.kill()
        process.wait(PATIENCE)
    updates = int(latest_checkpoint(tmp_path / "saved").name.rpartition("-")[2])
    assert wait_until(lambda: not _refused("saved"))
    more = flags(**SMALL, updates=updates + 50, every=5, checkpoint="saved", ranks=1)
    assert main(["train", "single", *more, "--resume"]) == 0
    assert "saved is taken over from process" in capfd.readouterr().out
    assert not list(Path("saved").glob("writer-*"))


def _refused(folder: str) -> bool:
    try:
        check_unlocked(folder)
    except CheckpointError:
        return True
    return False
