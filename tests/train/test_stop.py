"""A job that is asked to stop saves what it has, on all ranks after the same update, and loses nothing when resumed."""

from __future__ import annotations

import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

from course_lib import launch
from course_lib.command import main
from course_lib.runtime import stop
from course_lib.train import job
from course_lib.train.checkpoint.files import latest_checkpoint, read_checkpoint
from course_lib.train.job import train_job
from course_lib.train.settings import Settings
from tests.conftest import PATIENCE, wait_until
from tests.train.test_job import SMALL, TORCHRUN, flags, losses_in, started

UPDATES = 12
LAYOUTS = [Settings("ddp"), Settings("pipeline", {"micro_batches": 2}), Settings("fsdp")]


def settings_in(folder: Path, layout: Settings, **changes) -> Settings:
    size = {"updates": UPDATES, "batch": 8, "hidden": 4, "every": 1_000}
    return replace(layout, **size, checkpoint=str(folder / "saved"), log=str(folder / "run.jsonl"), **changes)


def asked_on(rank: int, update: int, settings: Settings) -> dict:
    """Train; one rank is asked to stop, in the middle of an update."""
    updates_on = job.updates_on

    def asking(*given):
        for number, done in enumerate(updates_on(*given), start=1):
            if (dist.get_rank(), number) == (rank, update):
                stop.request.ask("SIGTERM")
            yield done

    job.updates_on = asking
    return train_job(settings)


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory) -> dict[str, list[float]]:
    found = {}
    for layout in LAYOUTS:
        settings = settings_in(tmp_path_factory.mktemp(layout.strategy), layout)
        launch(train_job, replace(settings, checkpoint=None), ranks=2, timeout=PATIENCE)
        found[layout.strategy] = losses_in(settings.log)
    return found


@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2, 3))])
def test_asked_on_one_rank_all_stop_after_the_same_update_and_go_on_to_the_last_bit(tmp_path, never_stopped, number):
    chance = random.Random(number)
    layout, rank, update = LAYOUTS[number % len(LAYOUTS)], chance.randrange(2), chance.randint(1, UPDATES - 2)
    settings = settings_in(tmp_path, layout)
    first, second = launch(asked_on, rank, update, settings, ranks=2, timeout=PATIENCE)
    assert first["stopped"] == second["stopped"] == "SIGTERM"
    assert first["updates"] == second["updates"] == update + 1
    assert read_checkpoint(latest_checkpoint(settings.checkpoint)).position.updates == update + 1
    assert losses_in(settings.log) == never_stopped[layout.strategy][: update + 1]
    done = launch(train_job, replace(settings, resume=True), ranks=2, timeout=PATIENCE)[0]
    assert "stopped" not in done
    assert losses_in(settings.log) == never_stopped[layout.strategy]


def test_asked_in_the_last_updates_it_simply_ends(tmp_path):
    settings = settings_in(tmp_path, Settings("ddp"))
    for done in launch(asked_on, 1, UPDATES - 1, settings, ranks=2, timeout=PATIENCE):
        assert done["updates"] == UPDATES
        assert "stopped" not in done


def interrupted(folder: Path, layout: Settings, number: signal.Signals, launcher=()) -> tuple[int, str]:
    """The exit status and output of a command that gets a signal when it has trained for a while."""
    run = flags(**SMALL, updates=1_000_000, every=1_000_000, checkpoint="saved", log_file="run.jsonl")
    options = [f"{name}={value}" for name, value in layout.options.items()]
    log = folder / "run.jsonl"
    with started(layout.strategy, *options, *run, cwd=folder, launcher=launcher) as process:
        assert wait_until(lambda: log.exists() and len(log.read_text().splitlines()) > 3)
        process.send_signal(number)
        output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output


def resumed_is_as_never_stopped(folder: Path, layout: Settings) -> bool:
    """Whether the run, resumed for three updates more, has the losses of one that was never stopped."""
    saved = read_checkpoint(latest_checkpoint(folder / "saved")).position.updates
    assert len(losses_in(folder / "run.jsonl")) == saved
    whole = replace(layout, **SMALL, updates=saved + 3, log=str(folder / "whole.jsonl"))
    launch(train_job, whole, ranks=2, timeout=PATIENCE)
    again = replace(whole, checkpoint=str(folder / "saved"), log=str(folder / "run.jsonl"), resume=True)
    launch(train_job, again, ranks=2, timeout=PATIENCE)
    return losses_in(folder / "run.jsonl") == losses_in(folder / "whole.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "number"), [(LAYOUTS[0], signal.SIGHUP), (LAYOUTS[1], signal.SIGUSR1)])
def test_a_signal_to_the_command_saves_and_says_requeue_me(tmp_path, layout, number):
    status, output = interrupted(tmp_path, layout, number)
    saved = read_checkpoint(latest_checkpoint(tmp_path / "saved")).position.updates
    assert status == 75
    said = f"course: stopped by {number.name}; update {saved} is saved, and --resume continues from there"
    assert output.splitlines()[-1] == said
    assert resumed_is_as_never_stopped(tmp_path, layout)


@pytest.mark.slow
def test_a_signal_to_torchrun_saves_too(tmp_path):
    _, output = interrupted(tmp_path, LAYOUTS[2], signal.SIGTERM, launcher=TORCHRUN)
    saved = read_checkpoint(latest_checkpoint(tmp_path / "saved")).position.updates
    assert f"[rank 0] course: stopped by SIGTERM; update {saved} is saved, and --resume continues from there" in output
    assert resumed_is_as_never_stopped(tmp_path, LAYOUTS[2])


def test_when_the_time_is_up_it_saves_and_says_requeue_me(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = flags(**SMALL, ranks=2, updates=5, checkpoint="saved", log="run.jsonl")
    assert main(["train", "ddp", *run, "--time-limit", "0.000001"]) == 75
    assert (
        "course: stopped by the time limit; update 2 is saved, and --resume continues from there"
        in capsys.readouterr().err
    )
    assert main(["train", "ddp", *run, "--time-limit", "1:00:00", "--resume"]) == 0
    assert main(["train", "ddp", *flags(**SMALL, ranks=2, updates=5, log="whole.jsonl")]) == 0
    assert losses_in("run.jsonl") == losses_in("whole.jsonl")


@pytest.mark.parametrize("text", ["0", "nan", "1:99", "1:2:3:4", ""])
def test_a_time_limit_that_is_none_gets_a_sentence(text, capsys):
    assert main(["train", "ddp", "--checkpoint", "saved", f"--time-limit={text}"]) == 2
    assert "give seconds, or hours:minutes:seconds" in capsys.readouterr().err
