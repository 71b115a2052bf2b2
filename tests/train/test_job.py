"""`course train`: one command for every strategy, with a log, checkpoints and restarts."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import linecache
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from course_lib import launch, trace
from course_lib.command import main
from course_lib.launcher.notebook.progress_bar import ProgressBar
from course_lib.launcher.wire.progress import MARK, Progress, send
from course_lib.one_device.loop import BatchReader
from course_lib.runtime.machine import LAUNCHED_HERE
from course_lib.train import job
from course_lib.train.checkpoint.files import LOCK, Position, latest_checkpoint, read_checkpoint
from course_lib.train.job import train_job
from course_lib.train.log import Log, Record, read_log
from course_lib.train.registry import STRATEGIES
from course_lib.train.settings import Settings
from tests.conftest import MARK as FAMILY
from tests.conftest import PATIENCE, parent_of, processes_with, ranks_of, wait_until

SMALL = {"hidden": 8, "batch": 8}
NEEDS = {"accumulation": ["micro_batches=2"], "hybrid": ["replicas=2"]}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def flags(**settings) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def losses_in(path) -> list[float]:
    return [record.loss for record in read_log(path)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, tuple[int, str, Path]]:
    """For each strategy: how `course train` ended, what it said, and its log."""
    folder, found = tmp_path_factory.mktemp("trained"), {}
    for name in STRATEGIES:
        log, said = folder / f"{name}.jsonl", io.StringIO()
        run = flags(**SMALL, ranks=1 if name == "single" else 2, updates=6, log=log)
        with contextlib.redirect_stdout(said):
            ended = main(["train", name, *NEEDS.get(name, []), *run])
        found[name] = ended, said.getvalue(), log
    return found


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_trains_from_the_command_line(trained, name):
    ended, said, log = trained[name]
    assert ended == 0
    mesh = ", 2 replicas x 1 stage" if name == "hybrid" else ""
    assert re.fullmatch(rf"6 updates, loss 0\.\d{{4}}, [\d,]+ tokens/s{mesh}\n", said)
    records = read_log(log)
    assert [record.update for record in records] == list(range(1, 7))
    assert all(record.tokens_per_second > 0 for record in records)
    assert [record.seconds for record in records] == sorted(record.seconds for record in records)
    assert losses_in(log) == pytest.approx(losses_in(trained["single"][2]), rel=1e-3)


def test_a_log_is_plotted_from_the_command_line(trained, tmp_path):
    _, _, log = trained["single"]
    assert main(["plot", str(log), "--out", str(tmp_path / "loss.png")]) == 0
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("options", [{}, {"carry_state": True}], ids=["sentences", "streams"])
def test_a_text_of_ones_own_is_learned(tmp_path, options):
    text = tmp_path / "text.txt"
    text.write_text("The first rank reads. The second rank reads and writes. All ranks wait for the last one. " * 30)
    settings = Settings("ddp", options, data=str(text), tokens=256, updates=40, hidden=16, log=str(tmp_path / "log"))
    launch(train_job, settings, ranks=2)
    losses = losses_in(tmp_path / "log")
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.slow
def test_a_run_goes_on_where_its_checkpoint_is_with_another_strategy_and_through_epochs(tmp_path, monkeypatch):
    """20,000 sequences in batches of 3,000 are 7 updates an epoch, and the last one is smaller."""
    monkeypatch.chdir(tmp_path)
    size = flags(batch=3000, hidden=4)
    assert main(["train", "single", *size, *flags(updates=17, log="whole.jsonl")]) == 0
    assert (
        main(["train", "pipeline", *size, *flags(ranks=4, updates=10, every=4, checkpoint="c", log="run.jsonl")]) == 0
    )
    assert read_checkpoint(latest_checkpoint("c")).position == Position(10, epoch=1, batch=3)
    again = [*size, *flags(every=4, checkpoint="c", log="run.jsonl"), "--resume"]
    assert main(["train", "ddp", *again, *flags(ranks=2, updates=12)]) == 0
    assert main(["train", "fsdp", *again, *flags(ranks=3, updates=14)]) == 0
    assert main(["train", "single", *again, *flags(updates=17)]) == 0
    assert [record.update for record in read_log("run.jsonl")] == list(range(1, 18))
    assert losses_in("run.jsonl") == pytest.approx(losses_in("whole.jsonl"), rel=1e-3)


def test_the_reader_goes_on_with_the_batch_that_comes_next():
    class Sampler:
        def set_epoch(self, epoch):
            self.epoch = epoch

        def global_batches(self):
            return [[10 * self.epoch + number] for number in range(3)]

    class Data:
        def batch(self, indices):
            return indices[0]

    for seen in range(8):
        reader = BatchReader(Data(), Sampler())
        batches = iter(reader)
        first = [next(batches) for _ in range(seen)]
        again = iter(BatchReader(Data(), Sampler(), reader.epoch, reader.batch))
        assert first + [next(again) for _ in range(9 - seen)] == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_a_log_drops_what_the_checkpoint_has_not_seen_and_a_line_cut_short(tmp_path):
    file = tmp_path / "run.jsonl"
    records = [Record(update, 1 / update, 100.0, update / 10) for update in range(1, 6)]
    Log(file).append(records)
    with file.open("a") as open_file:
        open_file.write('{"update": 6, "lo')
    assert read_log(file) == records
    again = Log(file, after=3)
    assert again.seconds == 0.3
    again.append([Record(4, 0.0, 1.0, 0.4)])
    assert [(record.update, record.loss) for record in read_log(file)] == [(1, 1), (2, 1 / 2), (3, 1 / 3), (4, 0.0)]
    Log(file)
    assert read_log(file) == []


BAD = {  # what depends on a checkpoint, or on the ranks; tests/command/test_cli.py and test_cli_fuzz.py have the others
    "train pipeline --ranks 5": "4 blocks on 5 stages: a stage needs a block",
    "train ddp --checkpoint saved": "saved has a checkpoint of update 2: give --resume to continue from there",
    "train ddp --checkpoint saved --resume --seed 1": "saved was saved with seed=0: continue with the same",
    "train ddp --checkpoint saved --resume --batch 8": "saved/update-00000002 belongs to another model",
    "train single --checkpoint saved --resume --batch 8 --hidden 8 --updates 1": "has 2 updates already: give",
}


@pytest.fixture(scope="module")
def used_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("used")
    launch(train_job, Settings(updates=2, checkpoint=str(folder / "saved"), **SMALL), ranks=1)
    return folder


@pytest.mark.parametrize(("command", "says"), BAD.items(), ids=BAD)
def test_bad_options_get_one_sentence(used_folder, monkeypatch, capsys, command, says):
    monkeypatch.chdir(used_folder)
    assert main(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("course: ")
    assert says in line


BREAKS = """
import torch
from course_lib.data_parallel.ddp import DDP
from course_lib.sharding.fsdp import FSDP
from course_lib.pipeline.pipeline import Pipeline
from course_lib.core.strategy import Single

class Breaks(BASE):
    def step(self, batch):
        loss, count = super().step(batch)
        return (loss * float("inf") if self.updates >= 7 else loss), count

class LosesAWeight(BASE):
    def step(self, batch):
        loss, count = super().step(batch)
        if self.updates == 10 and self.rank == self.ranks - 1:
            with torch.no_grad():
                next(self.model.parameters()).mul_(float("nan"))
        return loss, count
"""
ENDS = {
    "Breaks": "the loss of update 7 is inf: give a smaller --learning-rate",
    "LosesAWeight": "the weights after update 10 are not finite: give a smaller --learning-rate",
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize(
    "base", ["DDP", *(pytest.param(base, marks=pytest.mark.slow) for base in ("Single", "Pipeline", "FSDP"))]
)
def test_what_is_not_finite_ends_the_run_and_keeps_the_last_good_checkpoint(tmp_path, monkeypatch, capsys, base, name):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(BREAKS.replace("BASE", base))
    run = flags(**SMALL, ranks=1 if base == "Single" else 2, updates=1000, every=5, checkpoint="saved", log="log")
    assert main(["train", f"mine.py:{name}", *run]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said == f"course: {ENDS[name]}; update 5 is saved, and --resume continues from there"
    assert [record.update for record in read_log("log")] == list(range(1, 7 if name == "Breaks" else 11))


def test_progress_is_no_output_but_a_line_that_only_begins_like_it_is():
    def print_them():
        send(Progress(5, 10, 0.25, 1000.0))
        print(MARK + "not JSON")
        print(MARK + '{"done": 1}')
        print(MARK + "[1, 2, 3, 4]")
        print(MARK + '{"done": 1, "total": 2, "loss": "low", "tokens_per_second": 1}')

    assert len(launch(print_them, ranks=1).output) == 4


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_shows_updates_loss_and_speed_in_a_terminal_and_lines_elsewhere(monkeypatch):
    terminal = Terminal()
    bar = ProgressBar(terminal)
    for done in (1, 7):
        bar.show(Progress(done, 10, 0.25, 12_345.0))
    bar._bar.refresh()
    assert re.search(r"7/10 .*loss 0.2500, 12,345 tokens/s", terminal.getvalue())
    file = io.StringIO()
    bar = ProgressBar(file)
    bar.show(Progress(1, 10, 0.5, 1000.0))
    assert file.getvalue() == ""  # not every quarter of a second
    monkeypatch.setattr("course_lib.launcher.notebook.progress_bar.LINE_EVERY", 0.0)
    bar.show(Progress(2, 10, 0.5, 1000.0))
    assert file.getvalue() == "2 of 10 updates, loss 0.5000, 1,000 tokens/s\n"


def test_a_run_tells_how_far_it_is():
    def told():
        seen = []
        train_job(Settings("ddp", updates=5, **SMALL), show=seen.append)
        return [(progress.done, progress.total) for progress in seen]

    run = launch(told, ranks=2)
    assert run[0][-1] == (5, 5)
    assert run[1] == []


@contextlib.contextmanager
def started(*arguments, cwd, launcher=(), **environment):
    """A command that runs while the block does; at the latest when the block ends, it is ended."""
    command = [sys.executable, *launcher, "-m", "course_lib", "train", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=cwd, env=os.environ | environment, **pipes)
    try:
        yield process
    finally:
        process.terminate()  # torchrun and our launcher both end their ranks
        process.wait(PATIENCE)


@pytest.mark.slow
def test_a_ranks_death_says_how_to_go_on(tmp_path):
    with started("ddp", *flags(**SMALL, updates=1_000_000, every=5, checkpoint="saved"), cwd=tmp_path) as process:
        assert wait_until(lambda: latest_checkpoint(tmp_path / "saved"))
        (writer,) = re.findall(r"process (\d+)", (tmp_path / "saved" / LOCK).read_text())
        os.kill(int(writer), signal.SIGKILL)
        output, _ = process.communicate(timeout=PATIENCE)
    saved = read_checkpoint(latest_checkpoint(tmp_path / "saved")).position.updates
    assert process.returncode == 1
    assert "course: RankDied: rank 0 was killed by SIGKILL" in output
    assert f"course: the job has ended; update {saved} is saved, and --resume continues from there" in output


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_half_and_says_how_to_go_on(tmp_path):
    family = uuid.uuid4().hex
    endless = flags(**SMALL, updates=1_000_000, every=5, checkpoint="saved")
    with started("ddp", *endless, cwd=tmp_path, **{FAMILY: family}) as process:
        assert wait_until(lambda: latest_checkpoint(tmp_path / "saved"))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE)
    saved = read_checkpoint(latest_checkpoint(tmp_path / "saved")).position.updates
    assert process.returncode == 130
    said = f"interrupted; all ranks have been stopped; update {saved} is saved, and --resume continues from there"
    assert output.splitlines()[-1] == f"course: {said}"
    assert wait_until(lambda: not ranks_of(processes_with(family)))
    assert main(["train", "ddp", *flags(**SMALL, updates=saved + 1, checkpoint=tmp_path / "saved"), "--resume"]) == 0


@pytest.mark.slow
def test_torchrun_runs_the_same_and_resumes(tmp_path):
    run = flags(**SMALL, every=10, checkpoint="saved", log_file="run.jsonl")
    for updates in (10, 25):  # the first one, too, may ask to resume: there is nothing yet
        with started("pipeline", *run, *flags(updates=updates), "--resume", cwd=tmp_path, launcher=TORCHRUN) as process:
            output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output
        assert re.search(rf"\[rank 0\] {updates} updates, loss 0\.\d+", output)
    launch(train_job, Settings("pipeline", updates=25, log=str(tmp_path / "whole.jsonl"), **SMALL), ranks=2)
    assert losses_in(tmp_path / "run.jsonl") == losses_in(tmp_path / "whole.jsonl")


@pytest.mark.slow
def test_torchrun_says_what_is_wrong_once(tmp_path):
    with started("hybrid", "replicas=3", cwd=tmp_path, launcher=TORCHRUN) as process:
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert output.count("replicas=3 on 2 ranks: replicas x stages = ranks") == 1


def rank_of(torchrun: subprocess.Popen, rank: int) -> int:
    """The process of a torchrun job's rank."""
    children = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if parent_of(pid) == torchrun.pid]
    return next(pid for pid in children if f"\0RANK={rank}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_killed_rank_brings_the_job_back_from_its_checkpoint(tmp_path):
    restarting = (*TORCHRUN[:-2], "--max-restarts", "3", *TORCHRUN[-2:])
    run = flags(**SMALL, updates=200, every=20, checkpoint="saved", log_file="run.jsonl")
    with started("ddp", *run, "--resume", cwd=tmp_path, launcher=restarting) as process:
        assert wait_until(lambda: latest_checkpoint(tmp_path / "saved"))
        os.kill(rank_of(process, 0), signal.SIGKILL)
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert "200 updates" in output
    assert re.search(r"resuming from update \d+", output)
    launch(train_job, Settings("ddp", updates=200, log=str(tmp_path / "whole.jsonl"), **SMALL), ranks=2)
    assert losses_in(tmp_path / "run.jsonl") == losses_in(tmp_path / "whole.jsonl")
    assert [json.loads(line)["update"] for line in (tmp_path / "run.jsonl").open()] == list(range(1, 201))


def test_nothing_is_left_to_do_when_all_updates_are_done(tmp_path):
    settings = Settings("ddp", updates=4, checkpoint=str(tmp_path), **SMALL)
    done = launch(train_job, settings, ranks=2)[0]
    again = launch(train_job, Settings(**{**vars(settings), "resume": True}), ranks=2)[1]
    assert (again["updates"], again["loss"]) == (4, done["loss"])


@pytest.mark.parametrize("sees_it", [0, 1])
def test_rank_0_decides_for_all_whether_there_is_a_checkpoint(tmp_path, monkeypatch, sees_it):
    """On NFS a rank may see a folder as it was: here, one of two ranks sees it empty."""
    monkeypatch.chdir(tmp_path)
    launch(train_job, Settings("ddp", updates=4, checkpoint="saved", **SMALL), ranks=2)

    def go_on():
        del os.environ[LAUNCHED_HERE]  # as in a job that may come back: it need not find a checkpoint
        folder = "saved" if os.environ["RANK"] == str(sees_it) else "empty"
        settings = Settings("ddp", updates=4, every=100, checkpoint=folder, resume=True, **SMALL)
        saves = []
        monkeypatch.setattr(job, "save_checkpoint", lambda *_, **__: saves.append(folder))
        return train_job(settings)["updates"], len(saves)

    assert list(launch(go_on, ranks=2)) == [(4, 0 if sees_it == 0 else 1)] * 2


@pytest.mark.slow  # the quicker neighbors: every strategy from the command line, and the killed rank under torchrun
def test_the_handbooks_commands_work_as_written(tmp_path):
    page = (Path(__file__).parents[2] / "docs/handbook/jobs.md").read_text()
    launched, under_torchrun, _ = page.split("```")[1].strip().splitlines()
    programs = {"course": ["course_lib"], "torchrun": ["torch.distributed.run"]}
    for command in (launched, under_torchrun):
        program, *words = command.split()
        whole = [sys.executable, "-m", *programs[program], *words, *flags(**SMALL, updates=3)]
        done = subprocess.run(whole, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        assert "3 updates, loss 0." in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"saved", "saved_hybrid", "run.jsonl"}


def blocks_along_the_way(folder, updates: int) -> list[tuple[int, int]]:
    """(updates done, blocks of memory that Python holds), several times a second, while this rank trains with a log."""
    held = []
    gc.freeze()  # what is there already is not looked at again

    def count(progress: Progress) -> None:
        linecache.clearcache()  # source lines, for whoever asks a rank where it is: as many as there are files
        gc.collect()
        held.append((progress.done, sys.getallocatedblocks()))

    settings = Settings("ddp", updates=updates, batch=64, hidden=2, layers=1, log=f"{folder}/run.jsonl")
    train_job(settings, show=count)
    assert trace.recorder.spans == []
    return held


BOUNDED_IS_FULL = 2_200  # updates: every sequence was made once, and PyTorch's record of 2,000 calls is full


@pytest.mark.slow  # a quicker neighbor: test_trace.py, for the spans that a run without end would keep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("updates", [6_000])
def test_a_long_run_does_not_grow(tmp_path, updates):
    """A span, a loss or a tensor kept for each update would be a block for each update, or several."""
    held = launch(blocks_along_the_way, tmp_path, updates, ranks=2, timeout=7000)[0]
    assert held[-1][0] == updates
    early = next((done, blocks) for done, blocks in held if done > BOUNDED_IS_FULL)
    grown, meanwhile = held[-1][1] - early[1], held[-1][0] - early[0]
    assert grown < 0.5 * meanwhile, f"{grown} blocks more after {meanwhile} updates"
