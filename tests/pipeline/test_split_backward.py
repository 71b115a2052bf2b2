"""A backward pass in two parts, inputs first and weights later, gives what a whole one gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from course_lib.core.model import SequenceModel, lstm_model
from course_lib.pipeline.stage import SplitPass, WholePass

STEPS, SEQUENCES, HIDDEN = 5, 3, 4
TOKENS = torch.randint(0, 7, (STEPS, SEQUENCES), generator=torch.Generator().manual_seed(1))


def model(layers: int = 2) -> SequenceModel:
    torch.manual_seed(0)
    return lstm_model(vocabulary=7, hidden=HIDDEN, layers=layers).double()


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def gradients_of(made: SequenceModel) -> dict[str, torch.Tensor | None]:
    return {name: None if weight.grad is None else weight.grad.clone() for name, weight in made.named_parameters()}


def both(made: SequenceModel, inputs: torch.Tensor, with_state: bool = False):
    """(gradients of all leaves, gradients of all weights) of a whole backward pass, and of a split one."""
    blocks = [made.part(place, place + 1) for place, _ in made.numbered()]
    recurrent = [place for place, block in made.numbered() if hasattr(block, "lstm")] if with_state else []
    dtype, results, passed_on = next(made.parameters()).dtype, [], None
    for split in (False, True):
        torch.manual_seed(3)
        made.zero_grad()
        states = {
            place: tuple(leaf(1, SEQUENCES, HIDDEN).to(inputs.device, dtype).detach().requires_grad_() for _ in "hc")
            for place in recurrent
        }
        given = inputs.detach().clone().requires_grad_(inputs.requires_grad)
        run = SplitPass.run(blocks, given, states) if split else WholePass.run(made, given, states)
        gradient = torch.randn_like(run.outputs)
        ended = (
            {place: tuple(map(torch.randn_like, state)) for place, state in run.new_states.items()}
            if with_state
            else {}
        )
        run.backward(gradient, ended)
        if isinstance(run, SplitPass):
            passed_on = gradients_of(made)
            run.second_part()()
        results.append(([given.grad, *(part.grad for state in states.values() for part in state)], gradients_of(made)))
    return *results, passed_on


def assert_same(ours, theirs, tolerance: float = 1e-10) -> None:
    assert (ours is None) == (theirs is None)
    if ours is not None:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


def assert_all_same(whole, split, tolerance: float = 1e-10) -> None:
    for ours, theirs in zip(split[0], whole[0], strict=True):
        assert_same(ours, theirs, tolerance)
    assert split[1].keys() == whole[1].keys()
    for name, gradient in split[1].items():
        assert_same(gradient, whole[1][name], tolerance)


@pytest.mark.parametrize("with_state", [False, True], ids=["no state", "state"])
def test_tokens_have_no_gradient_and_all_weights_get_theirs(with_state):
    whole, split, first = both(model(), TOKENS, with_state)
    assert_all_same(whole, split)
    assert all(gradient is not None for gradient in split[1].values())
    assert all(gradient is None for gradient in first.values()), "the first part has made weight gradients"


@pytest.mark.parametrize("with_state", [False, True], ids=["no state", "state"])
def test_a_part_in_the_middle_gives_the_gradient_of_its_inputs_first(with_state):
    whole, split, first = both(model(3).part(1, 4), leaf(STEPS, SEQUENCES, HIDDEN), with_state)
    assert_all_same(whole, split)
    assert split[0][0] is not None
    assert all(gradient is None for gradient in first.values())


def test_weights_that_are_not_trained_get_no_gradient_and_let_it_through():
    made = model(3)
    for frozen in ("0", "2"):
        made.blocks[frozen].requires_grad_(False)
    whole, split, _ = both(made, TOKENS, with_state=True)
    assert_all_same(whole, split)
    assert split[1]["blocks.2.lstm.weight_hh_l0"] is None


def test_a_part_with_nothing_to_train_passes_the_gradient_on_if_there_is_one():
    whole, split, _ = both(model(3).part(1, 3).requires_grad_(False), leaf(STEPS, SEQUENCES, HIDDEN))
    assert_all_same(whole, split)
    assert split[0][0] is not None
    whole, split, _ = both(model().part(0, 2).requires_grad_(False), TOKENS)
    assert_all_same(whole, split)


def test_a_weight_that_two_blocks_share_gets_both_gradients():
    made = model()
    made.blocks["3"].linear.weight = made.blocks["0"].table.weight
    whole, split, _ = both(made, TOKENS)
    assert_all_same(whole, split)


class Drop(nn.Module):
    width = HIDDEN

    def forward(self, inputs, state=None):
        return nn.functional.dropout(inputs, 0.5), None


def test_what_was_dropped_in_the_forward_pass_is_dropped_in_both_parts():
    blocks = dict(model(2).numbered())
    made = SequenceModel({0: blocks[0], 1: blocks[1], 2: Drop(), 3: blocks[2]})
    whole, split, _ = both(made, TOKENS, with_state=True)
    assert_all_same(whole, split)


def test_a_layer_that_runs_in_one_call_gives_the_same_too():
    made = model(3).float().part(1, 5)
    if "Rnn" not in made.part(1, 2)(torch.zeros(2, 1, HIDDEN))[0].grad_fn.name():
        pytest.skip("on this machine PyTorch runs an LSTM layer step by step")
    whole, split, first = both(made, leaf(STEPS, SEQUENCES, HIDDEN).float().detach().requires_grad_(), True)
    assert_all_same(whole, split, tolerance=1e-5)
    made_first = {name for name, gradient in first.items() if gradient is not None}
    assert made_first == {name for name in first if "lstm" in name}


def test_the_graph_is_gone_when_its_last_gradient_is_made():
    made = model(2)
    run = SplitPass.run([made.part(place, place + 1) for place in range(4)], TOKENS, {})
    run.backward(torch.ones_like(run.outputs), {})
    rest = run.second_part()
    rest()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        rest()


def test_between_the_two_parts_nothing_is_kept_of_a_layer_that_has_made_both_gradients():
    made = model(2).float().part(1, 3)
    if "Rnn" not in made.part(1, 2)(torch.zeros(2, 1, HIDDEN))[0].grad_fn.name():
        pytest.skip("on this machine PyTorch runs an LSTM layer step by step")
    run = SplitPass.run([made.part(1, 2), made.part(2, 3)], torch.zeros(STEPS, SEQUENCES, HIDDEN), {})
    run.backward(torch.ones_like(run.outputs), {})
    roots, weights = run.second_part().args
    assert (roots, weights) == ([], [])
