"""What would go wrong without a word: other data, lost buffers, the same dropout everywhere, options nobody reads."""

from __future__ import annotations

import re
import sys

import pytest
import torch

from course_lib import launch
from course_lib.command import main
from course_lib.core.adding import AddingProblem
from course_lib.core.model import Project, Recurrent, SequenceModel, lstm_model, squared_error
from course_lib.core.strategy import Single
from course_lib.data_parallel.ddp import DDP
from course_lib.model_parallel.tensor_parallel import TensorParallel
from course_lib.train.log import read_log
from tests.core.own_blocks import LayerNormed

MINE = '''
import os, random
import torch
from torch import nn
from course_lib.core.adding import AddingProblem
from course_lib.core.model import Project, Recurrent
from course_lib.data_parallel.ddp import DDP

class Kept(nn.Module):
    """Writes down what it drops, by rank, and has BatchNorm's running mean."""

    def __init__(self, width, file=None):
        super().__init__()
        alone = os.environ["WORLD_SIZE"] == "1"  # BatchNorm mixes sequences, so only one rank may have it
        self.norm = nn.BatchNorm1d(width) if alone else nn.LayerNorm(width)
        self.drop, self.width = nn.Dropout(0.5), width

    def forward(self, inputs, state=None):
        outputs = self.drop(self.norm(inputs.flatten(0, 1)).view_as(inputs))
        seen = int(getattr(self.norm, "num_batches_tracked", 0))
        with open(f"dropped.{os.environ['RANK']}", "a") as file:
            file.write(f"{(outputs == 0).sum(dim=(0, 1)).tolist()} {seen}\\n")
        return outputs, None

def blocks(features, outputs, hidden):
    return [Project(features, hidden), Recurrent(hidden), Kept(hidden), Project(hidden, outputs)]

def data():
    return AddingProblem(60, (4, 4), seed=3)

def other_data():
    return AddingProblem(60, (4, 4), seed=4)

def drawn_data():
    return AddingProblem(60, (4, 4), seed=int(torch.randint(1000, ())))

def data_of_each_rank():
    return AddingProblem(60, (4, 4), seed=int(os.environ["RANK"]))

class Noisy(AddingProblem):
    def batch(self, indices):
        whole = super().batch(indices)
        whole.inputs.add_(torch.randn_like(whole.inputs))
        return whole

def noisy_data():
    return Noisy(60, (4, 4), seed=3)

class WithoutOptions(DDP):
    def __init__(self, model, optimizer, loss):
        super().__init__(model, optimizer, loss)
'''
SMALL = ["--hidden", "6", "--batch", "8", "--updates", "4"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # that of another test
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def lines(path) -> list[str]:
    return path.read_text().splitlines()


def test_replicas_drop_other_numbers_and_a_resumed_run_drops_what_it_would_have(here):
    job = ["train", "ddp", *SMALL, "--ranks", "2", "--model", "mine.py:blocks", "--data", "mine:data"]
    assert main([*job, "--log", "whole"]) == 0
    first, second = (lines(here / f"dropped.{rank}")[-4:] for rank in range(2))  # before them, the trials
    assert first != second
    assert (
        main([*job[:-4], "--model", "mine.py:blocks", "--data", "mine:data", "--updates", "2", "--checkpoint", "a"])
        == 0
    )
    assert main([*job, "--checkpoint", "a", "--resume", "--log", "resumed"]) == 0
    assert [record.loss for record in read_log("resumed")] == [record.loss for record in read_log("whole")][2:]
    assert lines(here / "dropped.0")[-2:] == first[-2:]


def test_the_trial_before_the_first_update_counts_nothing(here):
    assert main(["train", "single", *SMALL, "--model", "mine.py:blocks", "--data", "mine:data"]) == 0
    counts = [line.split()[-1] for line in lines(here / "dropped.0")]
    assert counts[-4:] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("data", ["mine:other_data", "adding"])
def test_a_run_is_not_resumed_with_other_data(here, capsys, data):
    (here / "now.py").write_text("from mine import data as now\n")
    job = ["train", "single", *SMALL, "--data", "now:now", "--checkpoint", "saved"]
    assert main(job) == 0
    if data == "adding":
        assert main([*job[:-4], "--checkpoint", "saved", "--resume", "--updates", "6"]) == 2
        assert "saved was saved with data=now:now" in capsys.readouterr().err
        return
    (here / "now.py").write_text("from mine import other_data as now\n")
    assert main([*job, "--resume", "--updates", "6"]) == 2
    assert "was trained on different data: continue with the same" in capsys.readouterr().err


def test_a_text_that_has_changed_is_other_data(here, capsys):
    words = "every rank reads a share of the batch and sums what it has found . " * 40
    (here / "mine.txt").write_text(words)
    job = ["train", "single", *SMALL, "--tokens", "64", "--data", "mine.txt", "--checkpoint", "saved"]
    assert main(job) == 0
    (here / "mine.txt").write_text(" ".join(reversed(words.split())))
    assert main([*job, "--resume", "--updates", "6"]) == 2
    assert "was trained on different data" in capsys.readouterr().err


def test_data_that_draws_random_numbers_is_the_same_on_every_rank_and_in_every_run(here):
    job = ["train", "ddp", *SMALL, "--ranks", "2", "--data", "mine:drawn_data", "--checkpoint", "saved"]
    assert main(job) == 0
    assert main([*job, "--resume", "--updates", "5"]) == 0


def test_data_that_differs_between_ranks_is_refused(here, capsys):
    assert main(["train", "ddp", *SMALL, "--ranks", "2", "--data", "mine:data_of_each_rank"]) == 2
    assert "gives this rank different examples than rank 0" in capsys.readouterr().err


def test_data_that_draws_when_a_batch_is_read_is_refused(here, capsys):
    assert main(["train", "pipeline", *SMALL, "--ranks", "2", "--data", "mine:noisy_data"]) == 2
    assert "draws random numbers when a batch is read" in capsys.readouterr().err


def test_what_is_not_carried_over_is_said(here, capfd):
    job = [*SMALL, "--checkpoint", "saved"]
    assert main(["train", "ddp", *job, "--ranks", "2"]) == 0
    assert main(["train", "single", *job, "--resume", "--updates", "6", "--precision", "bf16"]) == 0
    said = capfd.readouterr().out
    assert "resuming from update 4, in bf16 instead of fp32, saved by DDP on 2 ranks (random state" in said


@pytest.mark.parametrize("job", [["accumulation", "micro_batches=1000"], ["pipeline", "micro_batches=9"]])
def test_more_micro_batches_than_sequences_are_refused(here, capsys, job):
    assert main(["train", *job, *SMALL]) == 2
    assert re.search("a rank's share of the first batch has [48] sequences", capsys.readouterr().err)


def test_a_strategy_of_ones_own_without_the_clip_is_said_to_have_none(here, capfd):
    assert main(["train", "mine:WithoutOptions", *SMALL, "--ranks", "2"]) == 0
    assert "mine:WithoutOptions has no option clip" in capfd.readouterr().out


@pytest.mark.parametrize("weight", [0.01, 0.25])
def test_counts_may_have_a_fraction_and_be_less_than_one(weight):
    """A weighted loss: sum and count are weighted alike, so that the mean does not change."""

    def weighted(outputs, batch):
        total, count = squared_error(outputs, batch)
        return total * weight, count * weight

    batch = AddingProblem(4, (3, 3), dtype=torch.float64).batch(range(4))
    losses = []
    for loss in (squared_error, weighted):
        torch.manual_seed(0)
        strategy = Single(lstm_model(features=2, hidden=3, layers=1, outputs=1).double(), torch.optim.SGD, loss)
        losses.append([strategy.step(batch)[0].item() for _ in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def test_ranks_of_tensor_parallelism_drop_alike_and_those_of_ddp_do_not():
    streams, weights = zip(*launch(_train_with_dropout, ranks=2), strict=True)
    assert streams == ((0, 0), (1, 0))
    assert weights[0] == weights[1]


def _train_with_dropout() -> tuple[tuple[int, int], list]:
    batch = AddingProblem(4, (3, 3), dtype=torch.float64).batch(range(4))

    def model() -> SequenceModel:
        blocks = [Project(2, 4), LayerNormed(4, drop=0.5), Recurrent(4), Project(4, 1)]
        return SequenceModel(dict(enumerate(blocks))).double()

    replicated, cut = (kind(model(), torch.optim.SGD, squared_error) for kind in (DDP, TensorParallel))
    for _ in range(3):
        cut.step(batch)
    return (replicated.random_stream, cut.random_stream), cut.model.blocks["0"].linear.weight.tolist()
