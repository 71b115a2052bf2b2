"""The balanced placement is the best there is, and the others cost what they look like."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.core.adding import AddingProblem
from course_lib.core.batch import Batch
from course_lib.core.memory import Memory, predict_block_memory, predict_memory
from course_lib.core.model import SequenceModel, lstm_model
from course_lib.model_parallel.placement import (
    BlockCost,
    CannotPlace,
    Placement,
    StepCost,
    balanced,
    equal_count,
    round_robin,
    step_cost,
)

quickly = settings(deadline=None, max_examples=60)
blocks_and_stages = st.integers(1, 9).flatmap(lambda blocks: st.tuples(st.just(blocks), st.integers(1, blocks)))
# Few different values: ties are where a solver goes wrong. Some of them cannot be added up exactly.
block_costs = st.builds(BlockCost, st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.0, 2.0]), st.integers(0, 6))
some_costs = st.lists(block_costs, min_size=1, max_size=8)


def every_placement(blocks: int, stages: int) -> list[Placement]:
    """All placements of consecutive blocks."""
    return [Placement.of_cuts(blocks, cuts) for cuts in combinations(range(1, blocks), stages - 1)]


def tokens_and_model() -> tuple[Batch, SequenceModel]:
    tokens = torch.arange(30).remainder(11).view(6, 5)
    batch = Batch(tokens, tokens, torch.full((5,), 6), torch.ones(6, 5, dtype=torch.bool))
    return batch, lstm_model(vocabulary=11, hidden=4, layers=2)


def numbers_and_model() -> tuple[Batch, SequenceModel]:
    return AddingProblem(5, (3, 9)).batch(range(5)), lstm_model(features=2, hidden=4, layers=3, outputs=1)


@quickly
@given(some_costs, st.data())
def test_balanced_is_as_fast_as_the_best_and_of_the_fastest_the_smallest(costs: list[BlockCost], data):
    stages = data.draw(st.integers(1, len(costs)))
    everything = [step_cost(each, costs) for each in every_placement(len(costs), stages)]
    ours = balanced(costs, stages)
    assert ours.stage_of == tuple(sorted(ours.stage_of))
    assert ours.stages == stages
    found = step_cost(ours, costs)
    assert (found.seconds, found.bytes) == min((step.seconds, step.bytes) for step in everything)


@quickly
@given(some_costs, st.integers(0, 30), st.data())
def test_balanced_keeps_to_the_memory_or_says_how_much_it_takes(costs: list[BlockCost], memory: int, data):
    stages = data.draw(st.integers(1, len(costs)))
    everything = [step_cost(each, costs) for each in every_placement(len(costs), stages)]
    fitting = [step for step in everything if step.bytes <= memory]
    if fitting:
        found = step_cost(balanced(costs, stages, memory), costs)
        assert (found.seconds, found.bytes) == min((step.seconds, step.bytes) for step in fitting)
    else:
        least = min(step.bytes for step in everything)
        with pytest.raises(CannotPlace, match=rf"fit into {memory} bytes each: at least {least} bytes would be needed"):
            balanced(costs, stages, memory)
        assert step_cost(balanced(costs, stages, least), costs).bytes == least


def test_the_same_costs_get_the_same_placement():
    assert balanced([BlockCost(1.0, 1)] * 5, 2).stage_of == (0, 0, 1, 1, 1)  # of two that are as good, always this one


def test_a_memory_limit_can_cost_time():
    costs = [BlockCost(1.0, 8), BlockCost(4.0, 1), BlockCost(4.0, 1), BlockCost(2.0, 8)]
    assert balanced(costs, 2).stage_of == (0, 0, 1, 1)
    assert balanced([*costs, BlockCost(0.0, 8)], 3, memory=10).stage_of == (0, 0, 1, 1, 2)
    assert balanced(costs, 3).stage_of == (0, 0, 1, 2)


@quickly
@given(blocks_and_stages)
def test_round_robin_hops_at_every_block(blocks_and_stages: tuple[int, int]):
    blocks, stages = blocks_and_stages
    placement = round_robin(blocks, stages)
    assert placement.hops == (blocks - 1 if stages > 1 else 0)
    assert placement.stages == stages
    assert sorted(place for stage in range(stages) for place in placement.blocks_of(stage)) == list(range(blocks))


@quickly
@given(blocks_and_stages)
def test_equal_count_differs_by_one_block_at_most(blocks_and_stages: tuple[int, int]):
    blocks, stages = blocks_and_stages
    placement = equal_count(blocks, stages)
    counts = [stop - start for start, stop in placement.parts]
    assert (len(counts), sum(counts), placement.hops) == (stages, blocks, stages - 1)
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


def test_the_parts_of_a_placement_are_the_model():
    _, model = numbers_and_model()
    parts = [model.part(start, stop) for start, stop in equal_count(len(model), 3).parts]
    names = [name for part in parts for name, _ in part.named_parameters()]
    assert names == [name for name, _ in model.named_parameters()]


def test_cuts_name_the_blocks_at_which_stages_begin():
    placement = Placement.of_cuts(5, [1, 4])
    assert placement.stage_of == (0, 1, 1, 1, 2)
    assert placement.parts == [(0, 1), (1, 4), (4, 5)]
    assert Placement([1, 0]).hops == 1


def test_a_step_costs_each_stage_the_sum_of_its_blocks():
    costs = [BlockCost(1.0, 10), BlockCost(2.0, 20), BlockCost(4.0, 40)]
    step = step_cost(round_robin(3, 2), costs)
    assert step == StepCost((BlockCost(5.0, 50), BlockCost(2.0, 20)))
    assert (step.seconds, step.bytes) == (5.0, 50)


@pytest.mark.parametrize("case", [tokens_and_model, numbers_and_model])
def test_the_blocks_share_the_memory_of_the_model(case):
    batch, model = case()
    predicted = predict_memory(model, batch)
    assert sum(predict_block_memory(*numbered, batch).total for numbered in model.numbered()) == predicted.total
    parts = [predict_memory(model.part(start, stop), batch) for start, stop in equal_count(len(model), 3).parts]
    assert sum(part.total for part in parts) == predicted.total
    hidden, layers = 4, len(model) - 2
    assert predicted.activations == 4 * batch.steps * batch.sequences * (7 * layers + 1) * hidden


def test_what_a_block_holds_by_its_kind():
    batch, model = tokens_and_model()
    (_, embed), (_, layer), _, (_, out) = model.numbered()
    assert predict_block_memory(0, embed, batch) == Memory(176, 176, 352, 0)
    assert predict_block_memory(1, layer, batch, optimizer_numbers=0) == Memory(640, 640, 0, 4 * 30 * 28)
    assert predict_block_memory(3, out, batch).activations == 4 * 30 * 4


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: round_robin(2, 3), "2 blocks on 3 stages: a stage needs a block, so give at most 2 stages"),
        (lambda: equal_count(2, 0), "stages=0: there must be at least one"),
        (lambda: balanced([BlockCost(1.0, 1)], 2), "1 blocks on 2 stages: a stage needs a block"),
        (
            lambda: balanced([BlockCost(1.0, 5000)], 1, 4000),
            "fit into 4,000 bytes each: at least 5,000 bytes would be needed",
        ),
        (lambda: Placement((0, 2)), r"stage_of=\(0, 2\): give each block a stage; every stage from 0 up needs a block"),
        (lambda: Placement(()), r"stage_of=\(\): give each block a stage"),
        (lambda: Placement.of_cuts(4, [2, 2]), r"cuts=\(2, 2\): give increasing numbers from 1 to 3"),
        (lambda: Placement.of_cuts(4, [4]), r"cuts=\(4,\): give increasing numbers from 1 to 3"),
        (lambda: round_robin(4, 2).parts, r"\(0, 1, 0, 1\) is not one part per stage: blocks_of"),
        (lambda: step_cost(round_robin(4, 2), [BlockCost(1.0, 1)]), "1 costs for 4 blocks: give one for each block"),
    ],
)
def test_bad_input_gets_a_sentence(make, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        make()
