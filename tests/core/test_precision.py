"""Half precision: every strategy computes what one process computes in that precision, and none trains alone."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.core.adding import AddingProblem
from course_lib.core.model import lstm_model, squared_error
from course_lib.core.shards import local_part
from course_lib.core.strategy import FIRST_SCALE, GROWTH_INTERVAL, GradientScaler, Single
from course_lib.data_parallel.ddp import DDP, Accumulation
from course_lib.model_parallel.model_parallel import ModelParallel
from course_lib.model_parallel.tensor_parallel import TensorParallel
from course_lib.pipeline.pipeline import Pipeline
from course_lib.sharding.fsdp import FSDP
from course_lib.sharding.hybrid import Hybrid

WAYS = {
    "ddp": DDP,
    "accumulation": partial(Accumulation, micro_batches=2),
    "model": ModelParallel,
    "tensor": TensorParallel,
    "pipeline": partial(Pipeline, micro_batches=2, chunks=2),
    "zero bubble": partial(Pipeline, schedule="zb-h1", micro_batches=2, recompute=True),
    "hybrid": partial(Hybrid, replicas=2, micro_batches=2),
    "hybrid with shards": partial(Hybrid, replicas=1, shards=2, micro_batches=2),
    "fsdp": FSDP,
    "fsdp in pieces": partial(FSDP, micro_batches=2),
}
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
UPDATES = 4


def trained(way, autocast: torch.dtype | None) -> tuple[list[float], torch.Tensor, set[torch.dtype]]:
    """The losses of some updates, all weights after them, and what the blocks on this rank computed in."""
    data, rank = AddingProblem(64, (3, 9)), dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(rank)
    model = lstm_model(features=2, hidden=16, layers=2, outputs=1)
    computed_in = set()
    for _, block in model.numbered():
        block.register_forward_hook(lambda block, inputs, outputs: computed_in.add(outputs[0].dtype))
    optimizer = partial(torch.optim.SGD, lr=0.1)  # Adam makes a whole step even of a gradient that is noise
    strategy = way(model, optimizer, squared_error, clip=1.0, autocast=autocast)
    if strategy.scaler:
        strategy.scaler.scale = 2.0**8  # with which none of these updates overflows
    batches = [data.batch(range(start, start + 8)) for start in range(0, 8 * UPDATES, 8)]
    losses = [strategy.step(strategy.share(batch))[0].item() for batch in batches]
    weights = [tensor.flatten() for _, tensor in sorted(strategy.full_state().items())]
    return losses, torch.cat(weights), computed_in


@pytest.fixture(scope="module")
def everywhere():
    def work():
        return {(name, half): trained(way, HALF[half]) for name, way in WAYS.items() for half in HALF}

    return launch(work, ranks=2, timeout=None)


@pytest.fixture(scope="module")
def alone():
    return {half: trained(Single, dtype) for half, dtype in {"fp32": None, **HALF}.items()}


@pytest.mark.slow
@pytest.mark.parametrize("half", HALF)
@pytest.mark.parametrize("way", WAYS)
def test_many_ranks_train_as_one_process_in_the_same_precision(everywhere, alone, way, half):
    """bfloat16 has 8 bits and rounds by up to 2**-9, float16 by 2**-12.

    Ranks add up fewer numbers at a time than one process, and so round at other places. A gradient is a sum of up to
    9 steps, each rounded: some 2 roundings of the largest part. Weights move by at most 0.1 in an update, the clipped
    norm times the learning rate, so that they may differ by that share of it.
    """
    rounding = {"bf16": 2**-9, "fp16": 2**-12}[half]
    for rank in range(2):
        losses, weights, computed_in = everywhere[rank][way, half]
        true_losses, true_weights, _ = alone[half]
        assert losses == pytest.approx(true_losses, rel=8 * rounding)
        assert (weights - true_weights).norm() < 2 * rounding * 0.1 * UPDATES
        assert computed_in == {HALF[half]}


@pytest.mark.parametrize("half", HALF)
def test_half_precision_is_near_float32_and_not_the_same(alone, half):
    (losses, weights, _), (true_losses, true_weights, _) = alone[half], alone["fp32"]
    assert losses == pytest.approx(true_losses, rel=0.02)
    assert (weights - true_weights).norm() > 1e-5
    assert weights.dtype == torch.float32


@pytest.mark.parametrize("way", ["ddp", "model", "pipeline", "hybrid", "hybrid with shards", "fsdp"])
def test_an_overflow_on_one_rank_leaves_out_the_update_on_all(way):
    def work():
        data = AddingProblem(8, (3, 9)).batch(range(8))
        model = lstm_model(features=2, hidden=8, layers=2, outputs=1)
        adam = partial(torch.optim.Adam, lr=0.1)
        strategy = WAYS[way](model, adam, squared_error, clip=1.0, autocast=torch.float16)
        strategy.scaler.scale = 2.0**8
        before, seen, unscale = strategy.full_state(), [], strategy.scaler.unscale

        def overflowing(parameters, *others):
            parameters = list(parameters)
            if dist.get_rank() == 1 and not seen:
                local_part(parameters[0].grad).view(-1)[0] = torch.inf
            seen.append(unscale(parameters, *others))
            return seen[-1]

        strategy.scaler.unscale = overflowing
        steps = []
        for _ in range(2):
            strategy.step(strategy.share(data))
            steps.append(max((strategy.full_state()[name] - before[name]).abs().max().item() for name in before))
        return seen, steps[0], steps[1] > 0, strategy.scaler.scale

    assert list(launch(work, ranks=2, timeout=None)) == [([False, True], 0.0, True, 2.0**7)] * 2


def test_the_scale_is_halved_by_an_overflow_and_doubled_after_many_updates_without():
    scaler, here, weight = GradientScaler(), torch.device("cpu"), torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([1.0, torch.nan])
    assert not scaler.unscale([weight], 1, here)
    weight.grad = torch.ones(2)
    assert scaler.scale == FIRST_SCALE / 2
    for _ in range(GROWTH_INTERVAL):
        assert scaler.scale == FIRST_SCALE / 2
        assert scaler.unscale([weight], 1, here)
    assert scaler.scale == FIRST_SCALE


def test_gradients_too_small_for_float16_train_by_being_scaled():
    """A loss of 1e-8 has gradients below float16's smallest number, 6e-8: unscaled, nothing would move."""

    def tiny(outputs, batch):
        total, count = squared_error(outputs, batch)
        return total * 1e-9, count

    def moved(scale: float) -> float:
        torch.manual_seed(0)
        model = lstm_model(features=2, hidden=8, layers=2, outputs=1)
        strategy = Single(model, partial(torch.optim.SGD, lr=1.0), tiny, autocast=torch.float16)
        strategy.scaler.scale = scale
        strategy.step(AddingProblem(8, (3, 9)).batch(range(8)))
        return strategy.full_gradients()["blocks.1.lstm.weight_ih_l0"].abs().max().item()

    assert moved(2.0**16) > 0
    assert moved(1.0) == 0
