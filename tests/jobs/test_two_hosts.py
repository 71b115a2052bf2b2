"""torchrun on two hosts, which here are two network namespaces with a cable between them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lib import launch
from course_lib.train.checkpoint.files import latest_checkpoint, read_checkpoint
from course_lib.train.job import train_job
from course_lib.train.settings import Settings
from tests.conftest import PATIENCE, wait_until
from tests.jobs import two_hosts
from tests.jobs.conftest import SMALL, UPDATES, losses
from tests.jobs.two_hosts import Host

pytestmark = [pytest.mark.timeout(3 * PATIENCE), pytest.mark.slow]

FLAGS = ["--hidden", "8", "--batch", "8", "--updates", str(UPDATES), "--peer-timeout", "8"]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory) -> Iterator[tuple[Host, Host]]:
    if reason := two_hosts.why_not():
        pytest.skip(reason)
    with two_hosts.two_hosts(tmp_path_factory.mktemp("hosts")) as both:
        yield both


@contextlib.contextmanager
def torchrun(hosts: tuple[Host, Host], *words: str, cwd: Path) -> Iterator[list[subprocess.Popen]]:
    """The same job started on both hosts, ended when the block ends."""
    jobs = []
    for number, host in enumerate(hosts):
        launcher = f"--nnodes 2 --node-rank {number} --nproc-per-node 2 --master-addr {hosts[0].name} -m course_lib"
        command = host.command(sys.executable, "-m", "torch.distributed.run", *launcher.split(), *words)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        jobs.append(subprocess.Popen(command, cwd=cwd, **pipes))
    try:
        yield jobs
    finally:
        for job in jobs:
            job.terminate()
        for job in jobs:
            job.communicate(timeout=PATIENCE)


@pytest.mark.slow  # the quicker neighbor: before its cable is cut, the job below trains on both hosts
def test_hybrid_on_two_hosts_has_the_losses_of_one_process(tmp_path, hosts, of_one_process):
    with torchrun(hosts, "train", "hybrid", "replicas=2", *FLAGS, "--log-file", "run.jsonl", cwd=tmp_path) as jobs:
        outputs = [job.communicate(timeout=PATIENCE)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    assert f"[rank 0] {UPDATES} updates, loss 0." in outputs[0]
    assert losses(tmp_path / "run.jsonl") == pytest.approx(of_one_process, rel=1e-4)  # float32, added in another order


RUN = ["train", "ddp", *FLAGS, "--every", "10", "--checkpoint", "saved", "--log-file", "run.jsonl", "--resume"]


@pytest.fixture(scope="module")
def cut(tmp_path_factory, hosts) -> tuple[Path, list[str]]:
    """The folder of a job whose cable was pulled when it had a checkpoint, and what it said on each host."""
    folder = tmp_path_factory.mktemp("cut")
    with torchrun(hosts, *RUN, "--updates", "1000000", cwd=folder) as jobs:
        assert wait_until(lambda: latest_checkpoint(folder / "saved"))
        hosts[0].plug("down")
        try:
            outputs = [job.communicate(timeout=PATIENCE)[0] for job in jobs]  # 8 s, and time to ask who is gone
        finally:
            hosts[0].plug("up")
    assert all(job.returncode for job in jobs)
    return folder, outputs


def test_a_cut_cable_ends_the_job_and_each_host_says_whom_it_lost(cut):
    _, outputs = cut
    assert "lost ranks 2 and 3 on host2: no answer. Most likely host2 or the network in between is down" in outputs[0]
    assert "lost ranks 0 and 1 on host1: no answer. Most likely host1 or the network in between is down" in outputs[1]
    assert "is saved, and --resume continues from there" in outputs[0]


@pytest.mark.slow  # the quicker neighbors: the test above, and test_kill.py, whose jobs go on after a kill
def test_when_the_cable_is_mended_the_job_goes_on(cut, hosts):
    folder, _ = cut
    saved = read_checkpoint(latest_checkpoint(folder / "saved")).position.updates
    updates = saved + 30
    with torchrun(hosts, *RUN, "--updates", str(updates), cwd=folder) as jobs:
        outputs = [job.communicate(timeout=PATIENCE)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    assert f"[rank 0] resuming from update {saved}" in outputs[0]
    whole = Settings("ddp", log=str(folder / "whole.jsonl"), **{**SMALL, "updates": updates})
    launch(train_job, whole, ranks=4, timeout=PATIENCE)
    assert losses(folder / "run.jsonl") == losses(folder / "whole.jsonl")
