"""Layers of a fixed pace, and a model whose gradients come all at once: the same numbers, other times."""

from __future__ import annotations

import torch

from course_lib import trace
from course_lib.core.model import lstm_model
from course_lib.core.pacing import OneNode, pace_layers


def model_and_inputs():
    torch.manual_seed(0)
    return lstm_model(features=2, hidden=4, layers=2, outputs=1).double(), torch.randn(5, 3, 2, dtype=torch.float64)


def gradients(model, inputs) -> list[torch.Tensor]:
    model.zero_grad()
    model(inputs)[0].square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_paced_layers_give_the_same_gradients_and_record_each_layer_by_its_place():
    model, inputs = model_and_inputs()
    plain = gradients(model, inputs)
    with trace.recording() as spans:
        paced = gradients(pace_layers(model, forward=0.002, backward=0.004), inputs)
    assert all(torch.equal(one, other) for one, other in zip(plain, paced, strict=True))
    assert [(s.name, s.label) for s in spans] == [
        ("forward", "1"),
        ("forward", "2"),
        ("backward", "2"),
        ("backward", "1"),
    ]
    assert all(span.paced and span.seconds >= 0.002 for span in spans)


def test_a_model_of_one_node_has_the_same_outputs_states_and_gradients():
    model, inputs = model_and_inputs()
    together = OneNode(dict(model.numbered()))
    (outputs, states), (expected, expected_states) = together(inputs), model(inputs)
    assert torch.equal(outputs, expected)
    assert states.keys() == expected_states.keys()
    assert all(torch.equal(states[place][0], expected_states[place][0]) for place in states)
    apart = gradients(model, inputs)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(gradients(together, inputs), apart, strict=True))


def test_of_one_node_no_gradient_is_there_before_the_backward_pass_of_all_blocks_is_over():
    model, inputs = model_and_inputs()
    order: list[str] = []
    for place, block in model.numbered():
        block.register_full_backward_hook(lambda *_, place=place: order.append(f"block {place}"))
        for parameter in block.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: order.append("gradient"))
    gradients(OneNode(dict(model.numbered())), inputs.requires_grad_())
    assert "block 1" in order[: order.index("gradient")]
