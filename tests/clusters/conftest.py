"""One Slurm for all tests that need one: it takes a second to come up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import slurm_cluster


@pytest.fixture(scope="session")
def slurm_variables(tmp_path_factory) -> Iterator[dict[str, str]]:
    """What an environment needs for Slurm's commands to find this cluster."""
    if reason := slurm_cluster.why_not():
        pytest.skip(reason)
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm")) as variables:
        # Both nodes are this machine: whatever its name resolves to, gloo is to use loopback.
        yield variables | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": _path_to_course_lib()}


@pytest.fixture
def on_cluster(slurm_variables, tmp_path, monkeypatch) -> Path:
    """Stand in an empty folder of a machine from which jobs can be submitted."""
    for name, value in slurm_variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _path_to_course_lib() -> str:
    here = str(Path(__file__).parents[2])
    return os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
