"""A real Slurm of two nodes: what `launch(on=slurm(...))` and `course ... --slurm` do there is what they do at home."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib import LaunchError, RankFailed, RanksStuck, launch, slurm, trace
from course_lib.command import main
from course_lib.launcher.jobs.slurm import BadPlace
from course_lib.launcher.jobs.slurm_node import MessageFile
from course_lib.train.checkpoint.files import latest_checkpoint, read_checkpoint
from course_lib.train.job import train_job
from course_lib.train.settings import Settings
from tests.conftest import MARK as FAMILY
from tests.conftest import PATIENCE, processes_with, ranks_of, wait_until
from tests.jobs.conftest import SMALL, losses

pytestmark = [pytest.mark.timeout(3 * PATIENCE), pytest.mark.slow]

TWO_BY_TWO = slurm(nodes=2, gpus_per_node=0, ranks_per_node=2)
FLAGS = ["--slurm", "--nodes", "2", "--gpus-per-node", "0", "--ranks-per-node", "2"]
SMALL_FLAGS = ["--hidden", "8", "--batch", "8"]


def queue() -> list[str]:
    return subprocess.run(["squeue", "--noheader"], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.core
def test_a_launch_returns_values_output_and_spans_of_all_nodes(on_cluster, capsys, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "1")  # as if this notebook ran inside another job

    def total(factor):
        mine = torch.tensor([float(dist.get_rank())])
        with trace.span("communication"):
            dist.all_reduce(mine)
        print(f"local rank {os.environ['LOCAL_RANK']} on {os.environ['SLURMD_NODENAME']}")
        return mine.item() * factor

    run = launch(total, 10, ranks=4, on=TWO_BY_TWO)
    assert list(run) == [60.0] * 4
    assert dict(run.output) == {rank: f"local rank {rank % 2} on n{rank // 2 + 1}" for rank in range(4)}
    assert "[rank 2] local rank 0 on n2" in capsys.readouterr().out
    assert sorted(span.rank for span in run.spans) == [0, 1, 2, 3]
    assert all(0 <= span.start <= span.end <= run.seconds for span in run.spans)
    assert list(on_cluster.iterdir()) == []
    assert queue() == []


def test_a_failing_rank_comes_home_with_its_line(on_cluster):
    def broken():
        print("before", flush=True)
        if dist.get_rank() == 3:
            raise ValueError("no data")
        dist.barrier()

    with pytest.raises(RankFailed, match="rank 3 raised ValueError: no data") as failure:
        launch(broken, ranks=4, on=TWO_BY_TWO)
    assert failure.value.rank == 3
    assert 'raise ValueError("no data")' in str(failure.value)
    assert sorted(failure.value.output) == [(rank, "before") for rank in range(4)]
    assert queue() == []


def test_ranks_that_hang_say_where_and_the_job_is_gone(on_cluster):
    def hangs():
        if dist.get_rank() == 1:
            time.sleep(1000)
        dist.barrier()

    with pytest.raises(RanksStuck, match="rank 1 is the odd one out") as stuck:
        launch(hangs, ranks=4, timeout=2, on=TWO_BY_TWO)
    assert stuck.value.where[3].collective == "barrier"
    assert queue() == []


def endless(every: int) -> list[str]:
    run = ["--updates", "1000000", "--every", str(every), "--checkpoint", "saved", "--log", "run.jsonl"]
    return [*SMALL_FLAGS, *run]


def saved_updates() -> int:
    return read_checkpoint(latest_checkpoint("saved")).position.updates


@contextlib.contextmanager
def course(*arguments: str, **environment: str) -> Iterator[subprocess.Popen]:
    """A command that runs while the block does; at the latest when the block ends, it is interrupted."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [sys.executable, "-m", "course_lib", *arguments]
    with subprocess.Popen(command, env=os.environ | environment, **pipes) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)


def test_an_interrupt_cancels_the_job_and_says_how_to_go_on(on_cluster):
    family = uuid.uuid4().hex
    with course("train", "ddp", *endless(every=5), *FLAGS, **{FAMILY: family}) as process:
        assert wait_until(lambda: latest_checkpoint("saved"))
        assert len(ranks_of(processes_with(family))) > 4
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert f"ranks have been stopped; update {saved_updates()} is saved, and --resume continues from there" in output
    assert queue() == []
    assert wait_until(lambda: not processes_with(family))


def resumed_to_the_end(updates: int) -> bool:
    """Whether run.jsonl, resumed until so many updates, has the losses of a run that was never stopped."""
    run = [*SMALL_FLAGS, "--updates", str(updates), "--checkpoint", "saved", "--log", "run.jsonl"]
    assert main(["train", "ddp", *run, "--ranks", "4", "--resume"]) == 0
    launch(train_job, Settings("ddp", updates=updates, log="whole.jsonl", **SMALL), ranks=4, timeout=PATIENCE)
    return losses("run.jsonl") == losses("whole.jsonl")


@pytest.fixture
def slow_to_clean_up(slurm_variables) -> Iterator[None]:
    """A node needs seconds after a job: what was put back into the queue is not off its nodes yet."""
    flag = Path(slurm_variables["SLURM_CONF"]).with_name("slow")
    flag.touch()
    yield
    flag.unlink()


@pytest.mark.usefixtures("slow_to_clean_up")
def test_a_requeued_ddp_job_goes_on_from_its_checkpoint(on_cluster, of_one_process):
    updates = 120  # enough for the job to be still there when it is put back
    run = [*SMALL_FLAGS, *["--updates", str(updates), "--every", "20", "--checkpoint", "saved", "--log", "run.jsonl"]]
    with course("train", "ddp", *run, *FLAGS) as process:
        assert wait_until(lambda: latest_checkpoint("saved"))
        number = queue()[0].split()[0]
        subprocess.run(["scontrol", "requeue", number], check=True)
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert output.count(f"job {number} was put back into the queue") == 1
    assert output.count(f"job {number} runs on") == 2
    assert re.search(r"resuming from update \d+", output)
    launch(train_job, Settings("ddp", updates=updates, log="whole.jsonl", **SMALL), ranks=4, timeout=PATIENCE)
    assert losses("run.jsonl") == losses("whole.jsonl")
    assert losses("run.jsonl")[:60] == pytest.approx(of_one_process, rel=1e-4)


def test_the_printed_script_runs_by_itself_and_when_told_that_time_is_up_puts_itself_back(on_cluster):
    with course("train", "ddp", *endless(every=1_000_000), *FLAGS, "--print") as process:
        script, _ = process.communicate(timeout=PATIENCE)
    (on_cluster / "job.sh").write_text(script)
    assert queue() == [], "nothing is submitted by --print"
    number = subprocess.run(["sbatch", "--parsable", "job.sh"], capture_output=True, text=True).stdout.strip()
    said = on_cluster / f"course-{number}.out"
    log = on_cluster / "run.jsonl"
    assert wait_until(lambda: log.exists() and log.read_text())
    subprocess.run(["scancel", "--signal=USR1", number], check=True)  # as Slurm does when time is nearly up
    assert wait_until(lambda: "resuming from update" in said.read_text()), said.read_text()
    first = saved_updates()
    assert f"[rank 0] resuming from update {first}\n" in said.read_text()
    assert "[launch] stopped by SIGUSR1; the ranks have saved their state" in said.read_text()
    assert wait_until(lambda: len(losses(log)) > first)
    subprocess.run(["scancel", number], check=True)
    assert wait_until(lambda: queue() == [])
    assert resumed_to_the_end(first + 5)


@pytest.mark.slow  # the quicker neighbors: the printed script above, and the requeued job, which is followed
def test_a_watched_job_that_is_told_that_time_is_up_is_followed_into_its_next_attempt(on_cluster):
    with course("train", "ddp", *endless(every=1_000_000), *FLAGS) as process:
        log = on_cluster / "run.jsonl"
        assert wait_until(lambda: log.exists() and log.read_text())
        number = queue()[0].split()[0]
        subprocess.run(["scancel", "--signal=USR1", number], check=True)
        assert wait_until(lambda: latest_checkpoint("saved"))
        first = saved_updates()
        assert wait_until(lambda: len(losses(log)) > first)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 75, output
    assert f"job {number} was put back into the queue" in output
    assert f"[rank 0] resuming from update {first}" in output
    assert f"course: stopped by SIGTERM; update {saved_updates()} is saved, and --resume continues from there" in output
    assert queue() == []
    assert resumed_to_the_end(saved_updates() + 3)


def test_a_hangup_leaves_the_job_whose_output_is_in_its_file(on_cluster):
    with course("train", "ddp", *endless(every=5), *FLAGS) as process:
        assert wait_until(lambda: latest_checkpoint("saved"))
        process.send_signal(signal.SIGHUP)
        output, _ = process.communicate(timeout=PATIENCE)
    (number,) = (line.split()[0] for line in queue())
    assert process.returncode == -signal.SIGHUP
    said = on_cluster / f"course-{number}.out"
    assert f"job {number} runs on n[1-2]; its output is also in {said.name}" in output
    first = saved_updates()
    assert wait_until(lambda: saved_updates() > first), said.read_text()
    subprocess.run(["scancel", number], check=True)
    assert wait_until(lambda: queue() == [])


@pytest.mark.slow  # the quicker neighbor: the requeued job above, which has the losses of one process, too
def test_the_handbooks_hybrid_job_has_the_losses_of_one_process(on_cluster, capsys, of_one_process):
    page = (Path(__file__).parents[2] / "docs/handbook/clusters.md").read_text()
    (command,) = re.findall(r"^course (train hybrid .*--slurm.*)$", page, flags=re.MULTILINE)
    smaller = [*SMALL_FLAGS, "--updates", "60", "--log", "run.jsonl", "--time", "10", *FLAGS, "replicas=2"]
    assert main([*command.split(), *smaller]) == 0
    assert "60 updates, loss 0." in capsys.readouterr().out
    assert losses("run.jsonl") == pytest.approx(of_one_process, rel=1e-4)  # float32, added in another order


PROGRAM = """
import os, signal
import torch.distributed as dist

def main(victim):
    if dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
"""


def test_a_function_from_a_file_runs_on_the_cluster_and_a_killed_rank_is_named(on_cluster, capsys):
    (on_cluster / "program.py").write_text(PROGRAM)
    assert main(["run", "program.py:main", "victim=2", *FLAGS]) == 1
    assert "course: RankDied: rank 2 was killed by SIGKILL" in capsys.readouterr().err


BAD = {
    "--nodes 3": "job [0-9]+ can never start: Partition",
    "--nodes 2 --partition narrow": "job [0-9]+ can never start: Partition",
    "--nodes 2 --time 2:00:00": "job [0-9]+ can never start: Partition",
    "--nodes 2 --partition missing": "Slurm rejected the job: .*[Ii]nvalid partition",
    "--nodes 2 --gpus-per-node 1": "Slurm rejected the job: Invalid generic resource",
    "--nodes 2 --sbatch=--nonsense": "Slurm rejected the job: ",
}


@pytest.mark.parametrize(("options", "says"), BAD.items(), ids=BAD)
def test_a_job_that_cannot_start_gets_a_sentence(on_cluster, capsys, options, says):
    defaults = ["--slurm", "--gpus-per-node", "0", "--ranks-per-node", "1"]
    assert main(["train", "ddp", *defaults, *options.split()]) in (1, 2)
    complaint = capsys.readouterr().err
    assert re.search(says, complaint), complaint
    assert queue() == []


def test_a_job_whose_python_cannot_start_shows_what_slurm_has_kept_of_it(on_cluster, monkeypatch):
    monkeypatch.setenv("PYTHONHOME", "nowhere")
    with pytest.raises(LaunchError, match=r"(?s)without a report from its ranks.*The end of its output:.*nowhere"):
        launch(dist.get_rank, ranks=4, on=TWO_BY_TWO)


def test_without_slurm_a_sentence_says_where_to_go(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        LaunchError, match=r"there is no sbatch here: call .* on a machine from which jobs are submitted"
    ):
        launch(dist.get_rank, ranks=4, on=TWO_BY_TWO)
    assert list(tmp_path.iterdir()) == []


def test_ranks_must_fit_the_nodes():
    with pytest.raises(BadPlace, match="ranks=5: 2 nodes with 2 ranks each are 4 ranks"):
        launch(dist.get_rank, ranks=5, on=TWO_BY_TWO)
    with pytest.raises(BadPlace, match="gpus_per_node=0 and ranks_per_node=None: give"):
        slurm(nodes=2, gpus_per_node=0)


def test_the_script_asks_for_what_was_given():
    place = slurm(
        nodes=4, gpus_per_node=8, partition="fast", account="us", cpus_per_rank=6, memory="64G", options=["--exclusive"]
    )
    asked = re.findall(r"^#SBATCH --(.*)$", place.script(), flags=re.MULTILINE)
    given = ["nodes=4", "gpus-per-node=8", "ntasks-per-node=1", "cpus-per-task=48", "mem=64G", "exclusive"]
    assert {*given, "partition=fast", "account=us", "signal=USR1@120", "requeue"} <= set(asked)
    assert place.ranks == 32
    assert "#SBATCH --cpus-per-task=32\n" in slurm().script(), "beside a GPU, a rank has cores to feed it"
    assert "#SBATCH --cpus-per-task=2\n" in TWO_BY_TWO.script()
    assert "--mem" not in slurm().script()


def test_a_journal_gives_whole_messages_once(tmp_path):
    writer, reader = MessageFile(tmp_path / "said"), MessageFile(tmp_path / "said")
    assert reader.read() == []
    writer.append("one", {"two": 2})
    whole = writer.path.read_bytes()
    writer.append("three" * 1000)
    complete = writer.path.read_bytes()
    writer.path.write_bytes(complete[: len(whole) + 100])
    assert reader.read() == ["one", {"two": 2}]
    assert reader.read() == []
    writer.path.write_bytes(complete)
    assert reader.read() == ["three" * 1000]
