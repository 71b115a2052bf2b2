"""Memory by formula: each way to save saves what it says, and a size predicts what its model does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from course_lib.core.adding import AddingProblem
from course_lib.core.memory import (
    BatchSize,
    BlockSize,
    Savings,
    lstm_size,
    predict_block_memory,
    predict_memory,
    predict_with,
    size_of,
)
from course_lib.core.model import Recurrent, lstm_model
from course_lib.model_parallel.work import Work
from course_lib.one_device.block_times import h200_block_times
from course_lib.one_device.memory_widget import explore_memory

SIZE = BatchSize(steps=20, sequences=6)


def model(layers: int = 3):
    return lstm_model(vocabulary=50, hidden=16, layers=layers)


def test_without_savings_it_is_what_the_formula_says():
    assert predict_with(model(), SIZE) == predict_memory(model(), SIZE)


def test_a_size_is_as_good_as_a_batch():
    batch = AddingProblem(6, lengths=(20, 20)).batch(range(6))
    numbers = lstm_model(features=2, hidden=8, layers=2, outputs=1)
    assert predict_memory(numbers, batch) == predict_memory(numbers, SIZE)


def test_momentum_keeps_one_number_per_parameter_and_plain_sgd_none():
    parameters = predict_with(model(), SIZE).parameters
    assert predict_with(model(), SIZE, Savings("SGD with momentum")).optimizer == parameters
    assert predict_with(model(), SIZE, Savings("SGD")).optimizer == 0


def test_autocast_halves_activations_and_copies_all_weights_but_the_embeddings():
    plain, cast = predict_with(model(), SIZE), predict_with(model(), SIZE, Savings(precision="autocast to bfloat16"))
    copied = plain.parameters - 4 * 50 * 16
    assert cast == replace(plain, activations=plain.activations // 2 + copied // 2)
    half = predict_with(model(), SIZE, Savings(precision="all bfloat16"))
    assert 2 * half.total == plain.total


def test_recomputation_keeps_one_number_per_layer_and_all_seven_of_one_layer():
    cells = 20 * 6 * 4
    for layers in (1, 3, 10):
        kept = predict_with(model(layers), SIZE, Savings(recompute=True)).activations
        assert kept == cells * 16 * (layers + 7 + 1)  # layers' inputs, one whole layer, the way out's input


def test_what_is_sharded_is_divided_and_parameters_are_gathered_a_block_at_a_time():
    plain = predict_with(model(), SIZE)
    one = predict_with(model(), SIZE, Savings(sharded="optimizer", ranks=4))
    assert one == replace(plain, optimizer=plain.optimizer // 4)
    everything = predict_with(model(), SIZE, Savings(sharded="optimizer, gradients, parameters", ranks=4))
    largest = 4 * 4 * (2 * 16 * 16 + 2 * 16)
    assert everything.parameters == plain.parameters // 4 + largest
    assert everything.gradients == plain.gradients // 4
    assert everything.activations == plain.activations


@pytest.mark.parametrize("wrong", [{"optimizer": "adam"}, {"precision": "int8"}, {"sharded": "all"}, {"ranks": 0}])
def test_a_wrong_choice_is_answered_with_the_right_ones(wrong):
    with pytest.raises(ValueError, match=r"choose|give at least one"):
        Savings(**wrong)


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
        assert Work.of(size, SIZE, times) == Work.of(model, SIZE, times)
        for savings in (Savings(), Savings("SGD", "all bfloat16", True, "optimizer, gradients, parameters", 8)):
            assert predict_with(size, SIZE, savings) == predict_with(model, SIZE, savings)
        compared += 1
    assert compared == 216


def test_numbers_of_eight_bytes_take_twice_the_room():
    layer = Recurrent(4)
    assert size_of(layer.double()) == BlockSize("lstm", 4, 4, number_bytes=8)
    assert predict_block_memory(1, layer, SIZE).total == 2 * predict_block_memory(1, Recurrent(4), SIZE).total


def test_of_a_block_that_does_not_know_its_size_the_parameters_are_counted():
    assert size_of(nn.Linear(3, 5)).parameters == 3 * 5 + 5
    assert size_of(nn.Linear(3, 5)).kind == "Linear"
