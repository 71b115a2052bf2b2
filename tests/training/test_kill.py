"""A job that is killed at any moment, and resumed, ends as one that was never killed: to the last bit."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from course_lib import LaunchError, launch
from course_lib.training.checkpoint_folder import latest_checkpoint
from course_lib.training.job import train_job
from course_lib.training.log import read_log
from course_lib.training.settings import Settings
from tests.conftest import wait_until

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="kills by process descriptor, which is Linux's")

RUNS = 20
RANKS = 4
LAYOUTS = [
    Settings("ddp"),
    Settings("pipeline", {"micro_batches": 2}),
    Settings("hybrid", {"replicas": 2, "micro_batches": 2}),
    Settings("accumulation", {"micro_batches": 2}),
]


def settings_in(folder: Path, layout: Settings) -> Settings:
    size = {"updates": 8, "batch": 8, "hidden": 4, "every": 2}
    return replace(layout, **size, checkpoint=str(folder / "saved"), log=str(folder / "run.jsonl"))


def job(settings: Settings, folder: Path) -> float:
    """Train, after telling whom to kill: this rank, and its parent, with which all ranks die."""
    aside = folder / f"pids.{os.environ['RANK']}.tmp"
    aside.write_text(f"{os.getpid()} {os.getppid()}")
    aside.rename(folder / f"pids.{os.environ['RANK']}")
    return train_job(settings)["loss"]


def kill(folder: Path, chance: random.Random, when: str, whom: str, longest: float) -> None:
    """Wait for the moment, then kill one rank, or all ranks at once."""
    files = [folder / f"pids.{rank}" for rank in range(RANKS)]
    assert wait_until(lambda: all(file.exists() for file in files), 60)
    rank, parent = map(int, chance.choice(files).read_text().split())
    victim = os.pidfd_open(parent if whom == "all ranks" else rank)  # no other process, should it be gone by then
    if when == "in a save":
        name = f"update-{2 * chance.randint(1, 4):08d}"
        places = [folder / "saved" / f"{name}.tmp", folder / "saved" / name]
        assert wait_until(lambda: any(place.exists() for place in places), 60)
        time.sleep(chance.uniform(0, 0.02))
    else:
        time.sleep(chance.uniform(0, longest))
    with contextlib.suppress(ProcessLookupError):  # the job was faster
        signal.pidfd_send_signal(victim, signal.SIGKILL)
    os.close(victim)


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory):
    """For each layout: the final loss, all losses, and how long the job took, its checkpoints included."""
    found = {}
    for layout in LAYOUTS:
        folder = tmp_path_factory.mktemp(layout.strategy)
        run = launch(job, settings_in(folder, layout), folder, ranks=RANKS)
        losses = [record.loss for record in read_log(folder / "run.jsonl")]
        found[layout.strategy] = run[0], losses, run.seconds
    return found


@pytest.mark.timeout(600)
def test_killed_at_random_moments_and_resumed_it_ends_with_the_same_loss(tmp_path, never_killed):
    chance = random.Random(6)
    killed = torn = 0
    for number in range(RUNS):
        layout = LAYOUTS[number % len(LAYOUTS)]
        when, whom = ("in a save", "any time")[number // 4 % 2], ("one rank", "all ranks")[number // 8 % 2]
        loss, losses, seconds = never_killed[layout.strategy]
        folder = tmp_path / str(number)
        folder.mkdir()
        settings = settings_in(folder, layout)
        killer = threading.Thread(target=kill, args=(folder, chance, when, whom, seconds))
        killer.start()
        try:
            launch(job, settings, folder, ranks=RANKS)
        except LaunchError:
            killed += 1
        killer.join()
        torn += any((folder / "saved").glob("*.tmp"))
        resumed = replace(settings, resume=latest_checkpoint(settings.checkpoint) is not None)
        what = f"run {number}: {layout.strategy}, {whom} killed {when}"
        assert launch(job, resumed, folder, ranks=RANKS)[0] == loss, what
        assert [record.loss for record in read_log(settings.log)] == losses, what
    assert killed >= RUNS // 2, f"only {killed} of {RUNS} jobs were killed in time"
    assert torn >= 2, f"only {torn} of {RUNS} jobs were killed while they saved"
    print(f"{killed} of {RUNS} killed, {torn} of them in the middle of a save")
