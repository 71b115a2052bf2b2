"""A model and data of one's own in `course train`: trained by every strategy, or refused in a sentence."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from torch import nn

from course_lib.command import main
from course_lib.core.adding import AddingProblem
from course_lib.core.model import Embed, Project, Recurrent, SequenceModel
from course_lib.core.text import Corpus
from course_lib.launcher.jobs.target import BadJob, names_a_function
from course_lib.train.log import read_log
from course_lib.train.tasks import check_runs, sizes_of, user_data, user_model

MINE = '''
import torch
from torch import nn
from course_lib.core.adding import AddingProblem
from course_lib.core.model import Project

class Gated(nn.Module):
    """A recurrent block that is no LSTM: its state has a second part that stays as it is."""

    def __init__(self, width):
        super().__init__()
        self.cell, self.width = nn.GRUCell(width, width), width

    def forward(self, inputs, state=None):
        zeros = inputs.new_zeros(1, inputs.shape[1], self.width)
        (h, c), outputs = state or (zeros, zeros), []
        h = h[0]
        for step in inputs:
            h = self.cell(step, h)
            outputs.append(h)
        return torch.stack(outputs), (h[None], c)

def blocks(features, outputs, hidden, depth=2):
    return [Project(features, hidden), *(Gated(hidden) for _ in range(depth)), Project(hidden, outputs)]

def data():
    return AddingProblem(50, (4, 6), seed=3)
'''
SMALL = ["--hidden", "6", "--batch", "8", "--updates", "4"]
RUN = ["--model", "mine.py:blocks", "--data", "mine:data"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # that of another test
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def losses(path) -> list[float]:
    return [record.loss for record in read_log(path)]


def test_strategies_train_a_model_of_ones_own_on_data_of_ones_own(here):
    assert main(["train", "single", *SMALL, *RUN, "--log", "single"]) == 0
    for way in (["pipeline", "chunks=2"], ["fsdp"]):
        assert main(["train", *way, *SMALL, *RUN, "--ranks", "2", "--log", way[0]]) == 0
        assert losses(way[0]) == pytest.approx(losses("single"), rel=1e-3)


def test_a_run_resumes_with_its_own_model_and_no_other(here, capsys):
    saving = ["train", "single", *SMALL, "--checkpoint", "saved"]
    assert main([*saving, *RUN]) == 0
    assert main([*saving, "--resume", "--data", "mine:data"]) == 2
    assert "saved was saved with --model mine.py:blocks: continue with the same" in capsys.readouterr().err
    assert main([*saving, "--resume", "--model", "mine.py:blocks"]) == 2
    assert "saved was saved with data=mine:data: continue with the same" in capsys.readouterr().err


BAD = {
    "nowhere.py:blocks": "--model nowhere.py:blocks: nowhere.py: there is no such file or module",
    "mine.py:none": "mine.py has no function 'none'; it defines ",
    "mine.py": "--model mine.py: name a file and a function in it",
    "boom.py:blocks": "boom.py cannot be imported: it raises ZeroDivisionError: division by zero",
    "\0:a": "no such file or module",
}


@pytest.mark.parametrize("target", BAD, ids=ascii)
def test_a_function_that_is_not_there_gets_a_sentence_before_a_rank_starts(here, target, capsys):
    (here / "boom.py").write_text("1 / 0")
    assert main(["train", "ddp", "--model", target]) == 2
    said = capsys.readouterr().err
    assert BAD[target] in said
    assert said.count("\n") == 1


def test_what_a_rank_finds_out_is_one_sentence_too(here, capfd):
    (here / "wrong.py").write_text("def blocks():\n    raise KeyError('hidden')\n")
    assert main(["train", "ddp", *SMALL, "--model", "wrong.py:blocks"]) == 2
    said = [line for line in capfd.readouterr().err.splitlines() if line]
    assert said == ["course: --model wrong.py:blocks raises KeyError: 'hidden' (wrong.py, line 2)"]


def returning(monkeypatch, value):
    monkeypatch.setattr("course_lib.train.tasks.find_yours", lambda option, target: value)


class NoWidth(nn.Linear):
    pass


NO_MODELS = [
    (lambda: nn.LSTM(2, 3), "returned LSTM(2, 3): return a list of blocks, the input block first"),
    (lambda: [], "returned []: return a list of blocks"),
    (lambda: [Project(2, 3), "way out"], "raises TypeError: "),
    (lambda: [Project(2, 3).requires_grad_(False)], "block 0 (Project) has no trainable parameters"),
    (lambda depth: [], "missing 1 required positional argument: 'depth'"),
]


@pytest.mark.parametrize(("function", "says"), NO_MODELS)
def test_what_is_no_list_of_blocks_gets_a_sentence(monkeypatch, function, says):
    returning(monkeypatch, function)
    with pytest.raises(BadJob, match=re.escape("--model mine:blocks") + ".*" + re.escape(says)):
        user_model("mine:blocks", {"features": 2, "hidden": 3})


class Bare(Project):
    def forward(self, inputs, state=None):
        return self.linear(inputs)


class BatchFirst(Project):
    def forward(self, inputs, state=None):
        return self.linear(inputs).transpose(0, 1), None


NOT_RUNNING = [
    ([Project(3, 1)], "block 0 (Project) raises RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    (
        [Bare(2, 4), Project(4, 1)],
        "block 0 (Bare) returned Tensor for 5 steps of one sequence: return (outputs,",
    ),
    ([BatchFirst(2, 1)], "block 0 (BatchFirst) returned (1, 5, 1) for 5 steps of one sequence"),
    ([NoWidth(2, 3)], "block 0 (NoWidth) raises AttributeError: 'NoWidth' object has no attribute 'width'"),
    ([Project(2, 4), Recurrent(4)], "the last block has width 4, and a target is one number: give it width 1"),
]


@pytest.mark.parametrize(("blocks", "says"), NOT_RUNNING)
def test_blocks_that_cannot_be_run_get_a_sentence(blocks, says):
    batch = AddingProblem(4, (5, 5)).batch(range(4))
    with pytest.raises(BadJob, match=re.escape(f"--model mine:blocks: {says}")):
        check_runs(SequenceModel(dict(enumerate(blocks))), "mine:blocks", batch)


def test_outputs_for_fewer_classes_than_there_are_get_a_sentence():
    corpus = Corpus.from_text("One two three. Two three four.")
    words = len(corpus.vocabulary)
    model = SequenceModel({0: Embed(words, 3), 1: Project(3, 2)})
    with pytest.raises(BadJob, match="the last block has width 2, and there is a class"):
        check_runs(model, "mine:blocks", corpus.batch([0, 1]))


class Batchless:
    def __len__(self):
        return 3

    def batch(self, indices):
        return torch.zeros(3)


NO_DATA = [
    (lambda: [1, 2], "raises AttributeError: 'list' object has no attribute 'batch'"),
    (lambda: Batchless(), "batch([0]) of its 3 examples is tensor([0., 0., 0.]): return a course_lib.core.batch.Batch"),
    (lambda path: None, "missing 1 required positional argument: 'path'"),
    (lambda: 1 / 0, "raises ZeroDivisionError: division by zero (test_own.py, line"),
]


@pytest.mark.parametrize(("function", "says"), NO_DATA)
def test_what_is_no_data_gets_a_sentence(monkeypatch, function, says):
    returning(monkeypatch, function)
    with pytest.raises(BadJob, match=re.escape("--data mine:data") + ".*" + re.escape(says)):
        user_data("mine:data")


def test_data_says_what_a_model_must_know(monkeypatch):
    corpus = Corpus.from_text("One two three. Two three four.")
    assert sizes_of(AddingProblem(4, (5, 5)), "mine:data", has_model=False) == {"features": 2, "outputs": 1}
    assert sizes_of(corpus, "mine:data", has_model=False) == {"vocabulary": len(corpus.vocabulary)}


def test_a_file_that_is_there_is_no_function(here):
    (here / "notes:old").write_text("A text. Of words.")
    assert not names_a_function("notes:old")
    assert not names_a_function("text")
    assert not names_a_function("a:")
    assert names_a_function("mine.py:data")
