"""A model's size, thought up, is the size of the model itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from course_lib.lstm.memory import BatchSize, BlockSize, Savings, lstm_size, predict_block_memory, predict_with, size_of
from course_lib.lstm.model import Recurrent, lstm_model
from course_lib.pictures import explore_memory
from course_lib.planning.block_times import Work, h200_block_times

BATCH = BatchSize(steps=16, sequences=3)


def models_of_the_sliders():
    """(size, model) for all sizes that the memory explorer offers; the models store nothing."""
    controls = explore_memory().controls
    for vocabulary in controls["vocabulary"].options:
        for hidden in controls["hidden"].options:
            for layers in controls["layers"].options:
                with torch.device("meta"):
                    model = lstm_model(vocabulary=vocabulary, hidden=hidden, layers=layers)
                yield lstm_size(vocabulary, hidden, layers), model


@pytest.mark.slow
def test_a_size_predicts_for_all_models_of_the_sliders_what_the_model_itself_does():
    times, compared = h200_block_times(), 0
    for size, model in models_of_the_sliders():
        parameters = [sum(each.numel() for each in block.parameters()) for _, block in model.numbered()]
        assert [block.parameters for block in size.blocks] == parameters
        assert Work.of(size, BATCH, times) == Work.of(model, BATCH, times)
        for savings in (Savings(), Savings("SGD", "all bfloat16", True, "optimizer, gradients, parameters", 8)):
            assert predict_with(size, BATCH, savings) == predict_with(model, BATCH, savings)
        compared += 1
    assert compared == 216


def test_numbers_of_eight_bytes_take_twice_the_room():
    layer = Recurrent(4)
    assert size_of(layer.double()) == BlockSize("lstm", 4, 4, number_bytes=8)
    assert predict_block_memory(1, layer, BATCH).total == 2 * predict_block_memory(1, Recurrent(4), BATCH).total


def test_of_a_block_that_does_not_know_its_size_the_parameters_are_counted():
    assert size_of(nn.Linear(3, 5)).parameters == 3 * 5 + 5
    assert size_of(nn.Linear(3, 5)).kind == "Linear"
