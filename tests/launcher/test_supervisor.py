"""The process between a notebook and its ranks: what it does when things end badly, and what it leaves behind."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib import LaunchError, RankDied, RankFailed, RanksStuck, launch
from course_lib.runtime.patience import descendants
from tests.conftest import PATIENCE, wait_until


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(4))
def test_a_rank_that_cannot_answer_and_then_ends_does_not_hide_the_others_error(attempt):
    def work():
        if dist.get_rank() == 0:
            raise ValueError("no data")
        ctypes.PyDLL(None).usleep(900_000 + 100_000 * attempt)  # holds Python's lock, and then leaves
        os._exit(7)

    with pytest.raises(RankFailed, match="rank 0 raised ValueError: no data"):
        launch(work, ranks=2)


def test_a_supervisor_that_is_killed_does_not_hide_what_a_rank_has_said():
    def work():
        if dist.get_rank() == 0:
            raise ValueError("no data")
        time.sleep(0.1)
        os.kill(os.getppid(), signal.SIGKILL)

    with pytest.raises(LaunchError) as caught:
        launch(work, ranks=2)
    assert "no data" in str(caught.value) or "was killed before they ended" in str(caught.value)


def test_a_stopped_rank_is_said_to_be_stopped():
    def work():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()

    with pytest.raises(RanksStuck) as caught:
        launch(work, ranks=3, timeout=5)
    assert caught.value.odd == (1,)
    assert "rank 1  is stopped" in str(caught.value)


def test_a_worker_of_a_data_loader_that_dies_is_told_in_the_learners_lines():
    from torch.utils.data import DataLoader

    def die(items):
        os.kill(os.getpid(), signal.SIGSEGV)

    def work():
        for _ in DataLoader([1, 2], num_workers=1, collate_fn=die):
            pass

    with pytest.raises(RankFailed) as caught:
        launch(work, ranks=1)
    assert "for _ in DataLoader" in str(caught.value)
    assert "calls inside torch" in str(caught.value)
    assert "torch/utils/data" not in str(caught.value)


@pytest.mark.slow
def test_nothing_is_left_after_a_program_that_is_killed(tmp_path):
    temporary = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # a short name, as most machines have
    program = "import time\nfrom course_lib import launch\nlaunch(time.sleep, 9999, ranks=2, timeout=None)"
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parents[2])}
    try:
        victim = subprocess.Popen([sys.executable, "-c", program], env=environment)
        assert wait_until(lambda: len(list(temporary.glob("course_lib-*/stack.*"))) == 2, PATIENCE)
        victim.kill()
        victim.wait()
        assert wait_until(lambda: not list(temporary.glob("course_lib-*")), PATIENCE)
    finally:
        shutil.rmtree(temporary)


LAUNCHES = 200
FAULTS = ("raise", "exit", "kill", "leave early", "other shape", "unpicklable", "bad argument")


def _work(fault: str) -> float:
    if dist.get_rank() == 1:
        match fault:
            case "raise":
                raise ValueError("no data")
            case "exit":
                os._exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "leave early":
                return 0.0
            case "unpicklable":
                return (i for i in [])  # type: ignore[return-value]
    total = torch.ones(2 if fault == "other shape" and dist.get_rank() == 1 else 1)
    dist.all_reduce(total)
    return total[0].item()


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_many_launches_leave_nothing_behind(capfd, monkeypatch, tmp_path):
    """One in ten fails, in some way or other. No process, folder, descriptor or memory may be left."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    draw = random.Random(0)
    launch(_work, "", ranks=2)
    processes, descriptors = set(descendants(os.getpid())), len(os.listdir("/proc/self/fd"))
    failed, memory = 0, []
    for number in range(LAUNCHES):
        fault = draw.choice(FAULTS) if number % 10 == 5 else ""
        try:
            launch(_work, fault, ranks=2, **({"timeout": -1} if fault == "bad argument" else {}))
            assert not fault
        except (LaunchError, ValueError, RankDied):
            failed += 1
        if number % (LAUNCHES // 10) == 0:
            gc.collect()
            memory.append(_memory())
    capfd.readouterr()
    assert failed == LAUNCHES // 10
    assert wait_until(lambda: set(descendants(os.getpid())) <= processes, PATIENCE)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert not list(tmp_path.glob("course_lib-*"))
    assert memory[-1] - memory[len(memory) // 2] < 20 << 20, memory


def _memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
