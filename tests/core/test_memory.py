"""What autograd keeps for the backward pass, counted."""

from __future__ import annotations

import torch
from torch import nn

from course_lib.core.adding import AddingProblem
from course_lib.core.metering import most_alive, saved_for_backward
from course_lib.core.model import lstm_model, squared_error
from course_lib.core.strategy import Single
from course_lib.one_device.measurement import measure_memory

BYTES = 8 * 1000  # of a vector of a thousand float64 numbers


def test_a_storage_that_is_saved_twice_counts_once():
    x = torch.rand(1000, dtype=torch.float64, requires_grad=True)
    with saved_for_backward(nn.Module()) as saved:
        product = x * x  # saves x as both factors
        cube = product * x  # and x once more, beside the product
        assert saved.bytes == 2 * BYTES
    del product, cube
    assert saved.bytes == 0


def test_what_backward_has_used_is_given_back_and_the_peak_stays():
    x = torch.rand(1000, dtype=torch.float64, requires_grad=True)
    with saved_for_backward(nn.Module()) as saved:
        for _ in range(3):
            total = x.exp().sin().sum()  # sin saves its input, exp its result: one storage
            assert saved.bytes == BYTES
            total.backward()
            assert saved.bytes == 0
    assert saved.peak == BYTES


def test_a_micro_batch_in_flight_adds_to_the_peak():
    x = torch.rand(1000, dtype=torch.float64, requires_grad=True)
    with saved_for_backward(nn.Module()) as saved:
        in_flight = [x.exp().sum() for _ in range(4)]
        for total in in_flight:
            total.backward()
    assert saved.peak == 4 * BYTES


def test_the_models_parameters_are_not_counted():
    model = nn.Linear(1000, 1, bias=False, dtype=torch.float64)
    inputs = torch.rand(1, 1000, dtype=torch.float64)
    with saved_for_backward(model) as saved:
        kept = model(inputs.requires_grad_())  # the weight for the inputs' gradient, the inputs for the weight's
    assert saved.bytes == BYTES
    del kept


def test_what_was_alive_at_once_counts_and_what_came_one_after_the_other_does_not():
    def one_after_the_other(x: torch.Tensor) -> float:
        return sum(float(x.exp().sum()) for _ in range(5))

    def all_at_once(x: torch.Tensor) -> float:
        return sum(float(kept.sum()) for kept in [x.exp() for _ in range(5)])

    x = torch.rand(1000, dtype=torch.float64)
    (total, in_turn), (same, together) = most_alive(one_after_the_other, x), most_alive(all_at_once, x)
    assert total == same
    assert in_turn < 2 * BYTES
    assert 5 * BYTES <= together < 6 * BYTES


def test_measuring_an_update_leaves_onednn_switched_on(monkeypatch):
    """PyTorch switches it off for good on a CPU that cannot compute in bfloat16."""

    class SwitchesOff(Single):
        def step(self, batch):
            torch.backends.mkldnn.enabled = False
            return super().step(batch)

    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    model = lstm_model(features=2, hidden=4, layers=1, outputs=1)
    measure_memory(SwitchesOff(model, torch.optim.Adam, squared_error), AddingProblem(2, (3, 3)).batch(range(2)))
    assert torch.backends.mkldnn.enabled
