"""One Slurm for all tests that need one, and the losses that every job here should have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lib import launch
from course_lib.train.job import train_job
from course_lib.train.log import read_log
from course_lib.train.settings import Settings
from tests.jobs import slurm_cluster

SMALL, UPDATES = {"hidden": 8, "batch": 8}, 60


def losses(file: str | Path) -> list[float]:
    return [record.loss for record in read_log(file)]


@pytest.fixture(scope="session")
def of_one_process(tmp_path_factory) -> list[float]:
    file = tmp_path_factory.mktemp("one") / "run.jsonl"
    launch(train_job, Settings(updates=UPDATES, log=str(file), **SMALL), ranks=1)
    return losses(file)


@pytest.fixture(scope="session")
def slurm_variables(tmp_path_factory) -> Iterator[dict[str, str]]:
    """What an environment needs for Slurm's commands to find this cluster."""
    if reason := slurm_cluster.why_not():
        pytest.skip(reason)
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm")) as variables:
        # Both nodes are this machine: whatever its name resolves to, gloo is to use loopback.
        paths = filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")])
        yield variables | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture
def on_cluster(slurm_variables, tmp_path, monkeypatch) -> Path:
    """Stand in an empty folder of a machine from which jobs can be submitted."""
    for name, value in slurm_variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path
