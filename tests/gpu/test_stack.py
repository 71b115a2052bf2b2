"""On a GPU, LSTM layers in one call are the same as one call for each, and cuDNN never has to copy their weights."""

from __future__ import annotations

import warnings

import pytest
import torch

from course_lib import device, launch
from course_lib.core.adding import AddingProblem
from course_lib.core.fast import Stack
from course_lib.core.model import lstm_model
from tests.core import test_stack as on_cpu


@pytest.fixture(autouse=True)
def on_the_gpu(monkeypatch):
    monkeypatch.setattr(on_cpu, "BATCH", on_cpu.BATCH.to(device()))


def test_outputs_states_and_gradients_are_those_of_layer_after_layer():
    apart, stacked = (on_cpu.run(on_cpu.model(one_call).to(device())) for one_call in (False, True))
    torch.testing.assert_close(stacked, apart, rtol=0, atol=1e-10)


def test_whoever_runs_finds_the_weights_in_one_piece():
    model = on_cpu.model(True, layers=4).to(device())
    part = model.part(2, 4)
    part.one_call = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # cuDNN's "weights are not part of single contiguous chunk of memory"
        for one_call in (True, False, True):
            model.one_call = one_call
            on_cpu.run(model)
            part(torch.zeros(3, 5, 6, device=device(), dtype=torch.float64))


@pytest.mark.parametrize(
    ("hidden", "precision", "calls"),
    [(1024, None, 1), (256, None, 0), (2048, torch.bfloat16, 1), (1024, torch.bfloat16, 0)],
)
def test_wide_layers_run_in_one_call_where_that_was_faster(monkeypatch, hidden, precision, calls):
    made, call = [], Stack.__call__
    monkeypatch.setattr(Stack, "__call__", lambda *given: made.append(1) or call(*given))
    model = lstm_model(features=2, hidden=hidden, layers=2, outputs=1).to(device())
    batch = AddingProblem(4, lengths=(3, 3)).batch(range(4)).to(device())
    with torch.autocast("cuda", dtype=precision, enabled=precision is not None):
        model(batch.inputs)
    assert len(made) == calls


def test_a_launch_does_not_start_the_driver_before_it_is_used():
    def started():
        before = torch.cuda.is_initialized()
        place = device()
        return before, torch.cuda.is_initialized(), torch.cuda.current_device() == place.index

    assert set(launch(started, ranks=2 * torch.cuda.device_count())) == {(False, True, True)}
