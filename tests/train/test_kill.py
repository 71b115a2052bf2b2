"""A job that is killed at any moment, and resumed, ends as one that was never killed: to the last bit."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp

from course_lib import LaunchError, RanksStuck, launch
from course_lib.train.checkpoint.files import latest_checkpoint
from course_lib.train.job import train_job
from course_lib.train.log import read_log
from course_lib.train.settings import Settings
from tests.conftest import PATIENCE, wait_until

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="kills by process descriptor, which is Linux's")

RANKS = 4
LAYOUTS = [
    Settings("ddp"),
    Settings("pipeline", {"micro_batches": 2}),
    Settings("hybrid", {"replicas": 2, "micro_batches": 2}),
    Settings("accumulation", {"micro_batches": 2}),
    Settings("hybrid", {"replicas": 1, "shards": 2, "micro_batches": 2}),
]
UPDATES, EVERY = 8, 2


@dataclass(frozen=True)
class Moment:
    """When a rank is killed: some time, in seconds, after the job has come to a place."""

    place: str
    update: int
    later: float


def some_moment(chance: random.Random, number: int) -> Moment:
    """In turn: held in the middle of a save, about the time of a save, and at any time between two updates."""
    place = ("in a save", "about a save", "after an update")[number % 3]
    if place == "after an update":
        return Moment(place, chance.randint(0, UPDATES), chance.uniform(0, 0.1))
    return Moment(place, EVERY * chance.randint(1, UPDATES // EVERY), chance.uniform(0, 0.02))


def settings_in(folder: Path, layout: Settings) -> Settings:
    size = {"updates": UPDATES, "batch": 8, "hidden": 4, "every": EVERY}
    return replace(layout, **size, checkpoint=str(folder / "saved"), log=str(folder / "run.jsonl"))


def job(settings: Settings, folder: Path, moment: Moment | None = None) -> float:
    """Train, after telling whom to kill: this rank, and its parent, with which all ranks die.

    Somebody who is to be killed does not end before that.
    """
    aside = folder / f"pids.{os.environ['RANK']}.tmp"
    aside.write_text(f"{os.getpid()} {os.getppid()}")
    aside.rename(folder / f"pids.{os.environ['RANK']}")
    if moment and moment.place == "in a save":
        hold_in_save(folder, name_of(moment.update))
    loss = train_job(settings)["loss"]
    if moment:
        time.sleep(2 * PATIENCE)
    return loss


def name_of(update: int) -> str:
    return f"update-{update:08d}"


def hold_in_save(folder: Path, name: str) -> None:
    """Let this rank stop forever where it writes its part of this checkpoint, and say so."""
    write = dcp.FileSystemWriter.write_data

    def write_or_wait(writer, *given):
        if Path(writer.path).name.startswith(name):
            (folder / "held").touch()
            time.sleep(2 * PATIENCE)
        return write(writer, *given)

    dcp.FileSystemWriter.write_data = write_or_wait


def has_come(folder: Path, moment: Moment) -> bool:
    if moment.place == "in a save":
        return (folder / "held").exists()
    if moment.place == "about a save":
        name = name_of(moment.update)
        return any((folder / "saved").glob(f"{name}*"))
    log = folder / "run.jsonl"
    return log.exists() and len(log.read_text().splitlines()) >= moment.update


def kill(folder: Path, chance: random.Random, moment: Moment, whom: str) -> None:
    """Wait for the moment, then kill one rank, or all ranks at once."""
    files = [folder / f"pids.{rank}" for rank in range(RANKS)]
    assert wait_until(lambda: all(file.exists() for file in files))
    rank, parent = map(int, chance.choice(files).read_text().split())
    victim = os.pidfd_open(parent if whom == "all ranks" else rank)  # no other process, should it be gone by then
    assert wait_until(lambda: has_come(folder, moment))
    time.sleep(moment.later)
    signal.pidfd_send_signal(victim, signal.SIGKILL)
    os.close(victim)


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory) -> Callable[[int], tuple[float, list[float]]]:
    """For the layout with that number: the final loss, and all losses."""

    @cache
    def losses_of(number: int) -> tuple[float, list[float]]:
        folder = tmp_path_factory.mktemp("whole")
        run = launch(job, settings_in(folder, LAYOUTS[number]), folder, ranks=RANKS, timeout=PATIENCE)
        return run[0], [record.loss for record in read_log(folder / "run.jsonl")]

    return losses_of


@pytest.mark.timeout(3 * PATIENCE)
@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=() if number < 1 else pytest.mark.slow) for number in range(10)]
)
def test_killed_at_a_random_moment_and_resumed_it_ends_with_the_same_loss(tmp_path, never_killed, number):
    chance = random.Random(number)
    layout, whom = LAYOUTS[number % len(LAYOUTS)], ("one rank", "all ranks")[number // len(LAYOUTS)]
    moment = some_moment(chance, number)
    loss, losses = never_killed(number % len(LAYOUTS))
    settings = settings_in(tmp_path, layout)
    killer = threading.Thread(target=kill, args=(tmp_path, chance, moment, whom))
    killer.start()
    with pytest.raises(LaunchError) as ended:
        launch(job, settings, tmp_path, moment, ranks=RANKS, timeout=PATIENCE)
    killer.join()
    assert not isinstance(ended.value, RanksStuck), "nobody was killed"
    if moment.place == "in a save":
        assert any((tmp_path / "saved").glob(f"{name_of(moment.update)}.*.tmp"))
        assert (latest_checkpoint(settings.checkpoint) is None) == (moment.update == EVERY)
    resumed = replace(settings, resume=latest_checkpoint(settings.checkpoint) is not None)
    assert launch(job, resumed, tmp_path, ranks=RANKS, timeout=PATIENCE)[0] == loss
    assert [record.loss for record in read_log(settings.log)] == losses
