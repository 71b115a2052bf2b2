"""However a job ends, and whenever: resumed, it has the losses of one that was never ended, to the last bit.

Every way to end, for every launcher and three strategies, at ten random moments each: 450 jobs, which take hours. A few
of them run with the other tests.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from course_lib import launch
from course_lib.settings import Settings
from course_lib.training.checkpoint.folder import LOCK, latest_checkpoint, read_checkpoint
from course_lib.training.job import train_job
from tests.clusters import slurm_cluster
from tests.conftest import PATIENCE, wait_until
from tests.training.test_job import SMALL, flags, losses_in

pytestmark = [pytest.mark.timeout(4 * PATIENCE), pytest.mark.slow]

RANKS = 2
LAYOUTS = {"ddp": [], "pipeline": ["micro_batches=2"], "fsdp": []}
ENDS = ("SIGTERM", "SIGUSR1", "SIGHUP", "SIGKILL", "time limit")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
TORCHRUN += ["--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"]
LAUNCHERS = {
    "local": ([], ["--ranks", str(RANKS)]),
    "torchrun": (TORCHRUN, []),
    "slurm": ([], ["--slurm", "--nodes", "1", "--gpus-per-node", "0", "--ranks-per-node", str(RANKS)]),
}


@dataclass(frozen=True)
class Case:
    """One job: how it is started, how and when it ends."""

    end: str
    launcher: str
    strategy: str
    number: int

    @property
    def saves_in_time(self) -> bool:
        """Whether the job hears of its end. A Slurm job does not hear of its watcher's: the test cancels it."""
        return self.end != "SIGKILL" and (self.launcher, self.end) != ("slurm", "SIGHUP")


# Each end with each launcher, the strategies in turn.
PAIRS = list(itertools.product(ENDS, LAUNCHERS))
CASES = [Case(end, launcher, list(LAYOUTS)[n % len(LAYOUTS)], n) for n, (end, launcher) in enumerate(PAIRS)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[dict[str, str]]:
    if reason := slurm_cluster.why_not():
        pytest.skip(reason)
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm")) as variables:
        yield {**variables, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path(__file__).parents[2])}


def train(case: Case, folder: Path, chance: random.Random, variables: dict[str, str]) -> subprocess.Popen:
    """The command, in a session of its own, with a terminal of nobody's."""
    before, behind = LAUNCHERS[case.launcher]
    run = flags(**SMALL, updates=1_000_000, every=chance.randint(3, 9), checkpoint="saved", log_file="run.jsonl")
    run += ["--time-limit", str(chance.uniform(0.05, 1.0))] if case.end == "time limit" else []
    run += ["--async-checkpoint"] if case.number % 2 else []
    command = [sys.executable, *before, "-m", "course_lib", "train", case.strategy, *LAYOUTS[case.strategy]]
    with (folder / "said").open("w") as said:
        pipes = {"stdout": said, "stderr": said, "stdin": subprocess.DEVNULL, "start_new_session": True}
        return subprocess.Popen([*command, *run, *behind], cwd=folder, env=os.environ | variables, **pipes)


def end(case: Case, process: subprocess.Popen, folder: Path, chance: random.Random, variables: dict[str, str]) -> None:
    """Wait for some moment, end the job, and return when nothing of it is left."""
    log, after = folder / "run.jsonl", chance.randint(1, 25)
    if case.end != "time limit":
        assert wait_until(lambda: log.exists() and len(log.read_text().splitlines()) >= after), said_in(folder)
        time.sleep(chance.uniform(0, 0.3))
        send(signal.Signals[case.end], case, process, folder)
    process.wait(PATIENCE)
    if case.launcher == "slurm":
        environment = os.environ | variables
        subprocess.run(["scancel", "--user=root"], env=environment, check=True)
        left = ["squeue", "--noheader"]
        assert wait_until(lambda: not subprocess.run(left, env=environment, capture_output=True).stdout)
    assert wait_until(lambda: not ranks_in(folder)), "ranks are left"


def send(number: signal.Signals, case: Case, process: subprocess.Popen, folder: Path) -> None:
    """To the command; a hang-up and a kill to all of its session. Of torchrun's, one rank is killed."""
    if case.launcher != "torchrun":
        (os.killpg if case.end in ("SIGHUP", "SIGKILL") else os.kill)(process.pid, number)
    elif case.end != "SIGKILL":
        os.kill(process.pid, number)
    else:
        (writer,) = re.findall(r"process (\d+)", (folder / "saved" / LOCK).read_text())
        os.kill(int(writer), number)


def ranks_in(folder: Path) -> list[int]:
    """Processes that work in this folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if Path(os.readlink(place / "cwd")) == folder:
                found.append(int(place.name))
        except OSError:
            continue
    return found


def said_in(folder: Path) -> str:
    return (folder / "said").read_text()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.end} {case.launcher} {case.strategy}")
def test_ended_at_a_random_moment_and_resumed_a_job_has_lost_nothing(case, tmp_path, request):
    variables = request.getfixturevalue("cluster") if case.launcher == "slurm" else {}
    chance = random.Random(repr(case))
    end(case, train(case, tmp_path, chance, variables), tmp_path, chance, variables)
    latest, log = latest_checkpoint(tmp_path / "saved"), tmp_path / "run.jsonl"
    saved = read_checkpoint(latest).position.updates if latest else 0
    if case.saves_in_time:
        assert saved > 0, said_in(tmp_path)
        assert len(losses_in(log)) == saved, said_in(tmp_path)
    options = dict(word.split("=") for word in LAYOUTS[case.strategy])
    whole = Settings(case.strategy, {name: int(value) for name, value in options.items()}, **SMALL)
    whole = replace(whole, updates=saved + 4, log=str(tmp_path / "whole.jsonl"))
    launch(train_job, whole, ranks=RANKS, timeout=PATIENCE)
    resumed = replace(whole, checkpoint=str(tmp_path / "saved"), log=str(log), resume=saved > 0)
    launch(train_job, resumed, ranks=RANKS, timeout=PATIENCE)
    assert losses_in(log) == losses_in(tmp_path / "whole.jsonl")
