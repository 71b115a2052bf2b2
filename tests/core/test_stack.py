"""LSTM layers in one call: the same numbers, states and names as one call for each."""

from __future__ import annotations

import copy

import cloudpickle
import pytest
import torch

from course_lib.core.adding import AddingProblem
from course_lib.core.fast import Stack
from course_lib.core.model import SequenceModel, lstm_model, squared_error

BATCH = AddingProblem(5, lengths=(3, 7), dtype=torch.float64).batch(range(5))


def model(one_call: bool | None, layers: int = 3) -> SequenceModel:
    torch.manual_seed(0)
    made = lstm_model(features=2, hidden=6, layers=layers, outputs=1).double()
    made.one_call = one_call
    return made


def run(model: SequenceModel, states=None):
    """Outputs, states and gradients of one pass."""
    model.zero_grad()
    outputs, states = model(BATCH.inputs, states)
    total, _ = squared_error(outputs, BATCH)
    total.backward()
    return outputs, states, {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.fixture
def calls(monkeypatch):
    """How many layers each stack had that was called."""
    made = []
    call = Stack.__call__
    monkeypatch.setattr(
        Stack, "__call__", lambda stack, *given: made.append(stack.lstm.num_layers) or call(stack, *given)
    )
    return made


@pytest.mark.parametrize("given", [False, True])
def test_outputs_states_and_gradients_are_those_of_layer_after_layer(calls, given):
    states = {place: tuple(torch.randn(2, 1, 5, 6).double()) for place in (1, 3)} if given else None  # 2 begins at zero
    apart, stacked = run(model(False), states), run(model(True), states)
    assert calls == [3]
    assert stacked[1].keys() == apart[1].keys() == {1, 2, 3}
    torch.testing.assert_close(stacked, apart, rtol=0, atol=1e-12)


def test_state_names_are_the_same():
    stacked = model(True)
    run(stacked)
    assert stacked.state_dict().keys() == model(False).state_dict().keys()
    assert len(list(stacked.parameters())) == len(list(model(False).parameters()))


def test_a_cut_ends_a_stack(calls):
    whole = model(None, layers=4)
    parts = [whole.part(0, 3), whole.part(3, 4), whole.part(4, 6)]
    outputs = BATCH.inputs
    for part in parts:
        part.one_call = True
        outputs, _ = part(outputs)
    assert calls == [2]  # layers 1 and 2; 3 and 4 are alone in their parts
    torch.testing.assert_close(outputs, model(False, layers=4)(BATCH.inputs)[0], rtol=0, atol=1e-12)


def test_weights_that_are_replaced_are_the_ones_that_are_used():
    stacked, apart = model(True), model(False)
    run(stacked)
    for each in (stacked, apart):
        each.blocks["2"].lstm.weight_hh_l0 = torch.nn.Parameter(torch.full((24, 6), 0.1).double())
    torch.testing.assert_close(run(stacked), run(apart), rtol=0, atol=1e-12)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda model: cloudpickle.loads(cloudpickle.dumps(model))])
def test_a_copy_has_weights_of_its_own(how):
    stacked = model(True)
    run(stacked)
    copied = how(stacked)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert copied(BATCH.inputs)[0].abs().max() == 0
    torch.testing.assert_close(run(stacked), run(model(False)), rtol=0, atol=1e-12)


def test_a_layer_that_somebody_watches_runs_by_itself(calls):
    watched, seen = model(True), []
    watched.blocks["2"].register_forward_hook(lambda *_: seen.append("layer 2"))
    run(watched)
    assert (seen, calls) == (["layer 2"], [])


def test_without_a_gpu_layers_run_one_after_another(calls):
    run(model(None))
    assert calls == []
