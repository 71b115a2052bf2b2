"""A split backward pass through cuDNN."""

from __future__ import annotations

import pytest
import torch

from tests.strategies.test_split_backward import HIDDEN, SEQUENCES, STEPS, assert_all_same, both, leaf
from tests.strategies.test_split_backward import model as split_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine"),
]


def test_a_split_backward_pass_through_cudnn_gives_what_a_whole_one_gives():
    part = split_model(3).part(1, 5).cuda()
    inputs = leaf(STEPS, SEQUENCES, HIDDEN).cuda().detach().requires_grad_()
    whole, split, first = both(part, inputs, with_state=True)
    assert_all_same(whole, split)
    made_first = {name for name, gradient in first.items() if gradient is not None}
    assert made_first == {name for name in first if "lstm" in name}
