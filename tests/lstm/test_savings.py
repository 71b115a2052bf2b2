"""Ways to save memory, by formula: without any it is the formula of lesson 01, and each saves what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.data import AddingProblem
from course_lib.lstm import BatchSize, Savings, lstm_model, predict_memory, predict_with

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
