"""A checkpoint that is written while the training goes on is the one of the update at which it was asked for."""

from __future__ import annotations

import os
import resource
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from course_lib import launch
from course_lib.one_device.loop import BatchReader, updates_on
from course_lib.train import tasks
from course_lib.train.checkpoint.files import CheckpointError, Position, latest_checkpoint
from course_lib.train.checkpoint.save_and_load import BackgroundSaver, load_checkpoint
from course_lib.train.job import train_job
from course_lib.train.registry import make_strategy
from course_lib.train.settings import Settings
from tests.conftest import PATIENCE
from tests.train.test_job import losses_in

UPDATES, EVERY = 9, 2


def settings_in(folder: Path) -> Settings:
    size = {"updates": UPDATES, "batch": 8, "hidden": 4, "every": EVERY, "async_checkpoint": True}
    return Settings("fsdp", **size, checkpoint=str(folder / "saved"), log=str(folder / "run.jsonl"))


@pytest.mark.slow
def test_a_run_resumed_from_one_has_the_losses_of_a_run_that_was_never_stopped(tmp_path):
    settings = settings_in(tmp_path)
    launch(train_job, replace(settings, checkpoint=None, log=str(tmp_path / "whole.jsonl")), ranks=2, timeout=PATIENCE)
    launch(train_job, replace(settings, updates=5), ranks=2, timeout=PATIENCE)
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["update-00000004", "update-00000005"]
    launch(train_job, replace(settings, resume=True), ranks=2, timeout=PATIENCE)
    assert losses_in(settings.log) == losses_in(tmp_path / "whole.jsonl")


def held_back(folder: Path) -> tuple[list[torch.Tensor], list[torch.Tensor], bool, bool]:
    """The weights when a save began, and those that were loaded from it; whether it had its name before, and after."""
    may_write, write = threading.Event(), dcp.FileSystemWriter.write_data

    def write_later(writer, *given):
        may_write.wait(PATIENCE)
        return write(writer, *given)

    dcp.FileSystemWriter.write_data = write_later
    task = tasks.make_task(Settings(batch=8, hidden=4))
    strategy = make_strategy("ddp", 0.01, {})(task.model(), loss=task.loss)
    batches = iter(BatchReader(task.dataset, task.sampler))
    for _ in updates_on(strategy, batches, 2):
        pass
    with BackgroundSaver() as saver:
        saver.save(strategy, folder, Position(2))
        then = [parameter.detach().clone() for parameter in strategy.model.parameters()]
        for _ in updates_on(strategy, batches, 2):
            pass
        before = latest_checkpoint(folder) is not None
        dist.barrier()
        may_write.set()
    after = latest_checkpoint(folder) is not None
    load_checkpoint(strategy, folder)
    return then, [parameter.detach() for parameter in strategy.model.parameters()], before, after


def test_it_has_the_weights_of_its_update_although_later_ones_came_before_it_was_written(tmp_path):
    for then, loaded, before, after in launch(held_back, tmp_path, ranks=2, timeout=PATIENCE):
        assert (before, after) == (False, True), "it is whole when it is written, and not before"
        assert all(torch.equal(one, other) for one, other in zip(then, loaded, strict=True))


def with_a_full_disk(settings: Settings, update: int) -> dict:
    """Train; from that update's save on, rank 1 can write no more than a few bytes."""
    write = dcp.FileSystemWriter.write_data

    def write_if_there_is_room(writer, *given):
        if dist.get_rank() == 1 and f"update-{update:08d}" in str(writer.path):
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        return write(writer, *given)

    dcp.FileSystemWriter.write_data = write_if_there_is_room
    return train_job(settings)


@pytest.mark.slow
@pytest.mark.parametrize("background", [False, True], ids=["at once", "in the background"])
def test_a_full_disk_ends_in_a_sentence_and_leaves_the_older_checkpoint_whole(tmp_path, background):
    settings = replace(settings_in(tmp_path), async_checkpoint=background)
    with pytest.raises(Exception, match="rank 1 cannot write its part of") as full:
        launch(with_a_full_disk, settings, 6, ranks=2, timeout=PATIENCE)
    cause = full.value.__cause__
    assert isinstance(cause, CheckpointError)
    assert "(File too large): check that the disk has room" in str(cause)
    assert sorted(os.listdir(settings.checkpoint)) == ["update-00000002", "update-00000004"]
    launch(train_job, replace(settings, resume=True), ranks=2, timeout=PATIENCE)
