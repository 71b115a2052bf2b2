"""`--compile` does what it says, or says that it cannot."""

from __future__ import annotations

import pytest
import torch

from course_lib.command import main
from course_lib.core.model import lstm_model
from course_lib.train.log import read_log
from course_lib.train.updates import compile_blocks

SMALL = ["--hidden", "8", "--batch", "8", "--updates", "4"]


def losses(path) -> list[float]:
    return [record.loss for record in read_log(path)]


def test_all_blocks_but_lstm_layers_are_compiled_and_keep_their_names(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda forward: compiled.append(forward.__self__) or forward)
    model = lstm_model(features=2, hidden=4, layers=2, outputs=1)
    names = list(model.state_dict())
    compile_blocks(model)
    assert compiled == [model.blocks["0"], model.blocks["3"]]
    assert list(model.state_dict()) == names


@pytest.mark.slow
def test_compiled_blocks_train_as_the_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "ddp", *SMALL, "--log", "plain"]) == 0
    assert main(["train", "ddp", *SMALL, "--log", "compiled", "--compile"]) == 0
    assert losses("compiled") == pytest.approx(losses("plain"), rel=1e-4)
