"""`--compile` and `--tensorboard FOLDER`: each does what it says, or says that it cannot."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from course_lib.cli import main
from course_lib.lstm.model import lstm_model
from course_lib.training.log import LogError, Record, TensorboardLog, read_log
from course_lib.training.loop import check_compiles, compile_blocks

SMALL = ["--hidden", "8", "--batch", "8", "--updates", "4"]
HAS_TENSORBOARD = importlib.util.find_spec("tensorboard") is not None


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


def test_without_a_compiler_there_is_a_sentence(monkeypatch):
    def broken(function):
        raise RuntimeError("no C++ compiler\nand a page about it")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(ValueError, match=r"--compile: no working compiler here \(RuntimeError: no C\+\+ compiler\)"):
        check_compiles(torch.device("cpu"))


@pytest.mark.slow
def test_compiled_blocks_train_as_the_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "ddp", *SMALL, "--log", "plain"]) == 0
    assert main(["train", "ddp", *SMALL, "--log", "compiled", "--compile"]) == 0
    assert losses("compiled") == pytest.approx(losses("plain"), rel=1e-4)


@pytest.mark.skipif(HAS_TENSORBOARD, reason="tensorboard is installed")
def test_without_tensorboard_the_package_is_named(capsys):
    assert main(["train", "ddp", *SMALL, "--tensorboard", "runs"]) == 2
    assert "--tensorboard needs the package tensorboard: pip install tensorboard" in capsys.readouterr().err


@pytest.mark.skipif(not HAS_TENSORBOARD, reason="tensorboard is not installed")
def test_tensorboard_reads_what_was_written_and_not_what_was_dropped(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    TensorboardLog(str(tmp_path)).append([Record(update, 1 / update, 10.0, 0.0) for update in (1, 2, 3)])
    TensorboardLog(str(tmp_path), after=2).append([Record(3, 0.5, 10.0, 0.0, 0.25)])
    read = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in read.Scalars("loss")] == [(1, 1.0), (2, 0.5), (3, 0.5)]
    assert [event.value for event in read.Scalars("mfu")] == [0.25]


def test_a_folder_that_cannot_be_made_gets_a_sentence(tmp_path, monkeypatch):
    if not HAS_TENSORBOARD:
        pytest.skip("tensorboard is not installed")
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="cannot be written"):
        TensorboardLog(str(tmp_path / "file" / "runs"))
