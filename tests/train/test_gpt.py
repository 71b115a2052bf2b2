"""`course train --model gpt`: every strategy trains it, it resumes, and what cannot be is refused in a sentence."""

from __future__ import annotations

import pytest

from course_lib.command import main
from course_lib.train.log import read_log

RUN = ["--model", "gpt", "--hidden", "8", "--layers", "2", "--batch", "8", "--updates", "4"]
SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def losses(path: str) -> list[float]:
    return [record.loss for record in read_log(path)]


@pytest.mark.parametrize(
    "way",
    [
        ["tensor"],
        pytest.param(["pipeline", "chunks=2", "schedule=wavefront"], marks=SLOW),
        pytest.param(["fsdp"], marks=SLOW),
    ],
    ids=" ".join,
)
def test_every_strategy_trains_it_as_one_process_does(way):
    assert main(["train", "single", *RUN, "--log", "alone"]) == 0
    assert main(["train", *way, *RUN, "--ranks", "2", "--log", "together"]) == 0
    assert len(losses("alone")) == 4
    assert losses("together") == pytest.approx(losses("alone"), rel=1e-3)


@SLOW
def test_a_checkpoint_of_one_strategy_resumes_with_another():
    saving = [*RUN, "--checkpoint", "saved", "--log", "cut"]
    assert main(["train", "single", *RUN, "--updates", "8", "--log", "whole"]) == 0
    assert main(["train", "tensor", *saving, "--ranks", "2"]) == 0
    assert main(["train", "pipeline", *saving, "--ranks", "2", "--updates", "8", "--resume"]) == 0
    assert losses("cut") == pytest.approx(losses("whole"), rel=1e-3)


def test_it_resumes_with_its_own_model_and_no_other(capsys):
    saving = ["train", "single", *RUN, "--checkpoint", "saved"]
    assert main(saving) == 0
    without = [word for word in saving if word not in ("--model", "gpt")]
    assert main([*without, "--resume"]) == 2
    assert "saved was saved with --model gpt: continue with the same" in capsys.readouterr().err
    assert main([*saving, "--updates", "5", "--resume"]) == 0


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (["single", *RUN, "--hidden", "12"], "hidden=12: a GPT with 4 heads needs a multiple of 8"),
        (["single", "carry_state=True", *RUN, "--data", "text"], "carry_state=True: a GPT has no state to carry"),
        (["tensor", *RUN, "--ranks", "5"], "a GPT block with 4 heads on 5 ranks"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(way, words, capsys):
    assert main(["train", *way]) != 0
    assert words in capsys.readouterr().err
