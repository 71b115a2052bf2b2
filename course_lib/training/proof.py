"""The same result as one process: the proof that every strategy of the course must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.data import Batch
from course_lib.launchers import launch
from course_lib.lstm.model import Loss, SequenceModel, own_random_numbers, untouched
from course_lib.strategies import Single, Strategy
from course_lib.strategies.base import MakeOptimizer
from course_lib.strategies.registry import check_is_strategy
from course_lib.strategies.shards import NamedTensors, check_outlines, gather_outlines

TOLERANCE = 1e-10


@dataclass(frozen=True)
class Step:
    """The largest differences between a rank and the single process after one update, and where the worst one is."""

    number: int
    rank: int
    gradients: float
    parameters: float
    loss: float
    worst: str

    @property
    def same(self) -> bool:
        return max(self.gradients, self.parameters, self.loss) <= TOLERANCE


@dataclass(frozen=True)
class Proof:
    """The comparison, step by step and rank by rank. It is truthy if all of them agree."""

    ranks: int
    steps: tuple[Step, ...]

    def __bool__(self) -> bool:
        return all(step.same for step in self.steps)

    def __repr__(self) -> str:
        updates = len({step.number for step in self.steps})
        on_ranks = f"{self.ranks} {'rank' if self.ranks == 1 else 'ranks'}"
        if self:
            return (
                f"the same as one process: {on_ranks}, after each of {updates} updates, "
                f"loss, gradients and parameters agree to {TOLERANCE:g}"
            )
        step = next(step for step in self.steps if not step.same)
        return (
            f"NOT the same as one process: after update {step.number} rank {step.rank} is off by "
            f"{step.gradients:.1g} in the gradients (most in {step.worst}), {step.parameters:.1g} in the parameters "
            f"and {step.loss:.1g} in the loss"
        )


def same_as_one_process(
    strategy: Callable[..., Strategy],
    *,
    ranks: int,
    model: Callable[[], SequenceModel],
    batches: Sequence[Batch],
    optimizer: MakeOptimizer,
    loss: Loss,
    **options: Any,
) -> Proof:
    """Train `strategy` on `ranks` ranks and a twin in this process, on the same global batches, and compare.

    Every rank makes its model from a different seed, on purpose, to catch a strategy that forgets to synchronize the
    weights. The twin starts from rank 0's. Everything is in float64, and compared after every update.

    `torch.nn.functional.dropout` drops the same features here for every step of every sequence, on the ranks and in
    the twin, so it does not matter which sequences a rank gets. A model that draws other random numbers cannot be
    compared, and is refused.
    """
    (proof,) = prove_all([options], strategy, ranks=ranks, model=model, batches=batches, optimizer=optimizer, loss=loss)
    return proof


def prove_all(
    variations: Sequence[dict[str, Any]],
    strategy: Callable[..., Strategy],
    *,
    ranks: int,
    **training: Any,
) -> list[Proof]:
    """Return one proof for each set of options, tested one after another on the same ranks.

    `training` is what `same_as_one_process` takes: the model, batches, optimizer and loss.
    """
    model, batches, optimizer, loss = (training[name] for name in ("model", "batches", "optimizer", "loss"))
    arguments = (strategy, model, batches, optimizer, loss)
    with own_random_numbers(), dropout_by_feature():
        _check_draws_nothing(_seeded(model, rank=0), batches[0])
    run = launch(_train_and_report, variations, *arguments, ranks=ranks, timeout=60 * len(variations))
    twins: dict[tuple, list[Report]] = {}
    proofs = []
    for number, options in enumerate(variations):
        for_twin = {name: value for name, value in options.items() if name in ("carry_state", "clip")}
        key = tuple(sorted(for_twin.items()))
        if key not in twins:
            with own_random_numbers(), dropout_by_feature():  # restores the caller's random numbers
                twin = Single(_seeded(model, rank=0), optimizer, loss, **for_twin)
                twins[key] = [_after_step(twin, batch) for batch in batches]
        proofs.append(_compare_all(ranks, [values[number] for values in run], twins[key]))
    return proofs


Report = tuple[float, NamedTensors, NamedTensors]


def _train_and_report(variations, strategy, model, batches, optimizer, loss) -> list[list[Report]]:
    reports = []
    for options in variations:
        trained = strategy(_seeded(model, dist.get_rank()), optimizer, loss, **options)
        check_is_strategy(trained)
        check_outlines(gather_outlines(trained.checked_shards()))
        with dropout_by_feature():
            reports.append([_after_step(trained, batch) for batch in batches])
    return reports


@contextmanager
def dropout_by_feature() -> Iterator[None]:
    """Inside this context, dropout drops whole features, the same ones for all steps and sequences of one width."""

    def dropout(inputs: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training:
            return inputs
        width = inputs.shape[-1]
        mask = torch.rand(width, generator=torch.Generator().manual_seed(width)) >= p
        return inputs * mask.to(inputs) / max(1 - p, 1e-9)

    with mock.patch.object(torch.nn.functional, "dropout", dropout):
        yield


def _check_draws_nothing(model: SequenceModel, batch: Batch) -> None:
    """Refuse a model whose outputs depend on random numbers: no two runs of it are the same."""
    with untouched(model), torch.no_grad():
        inputs = batch.inputs[:2, :2]
        outputs = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            outputs.append(model(inputs)[0].nan_to_num())
    if not torch.equal(*outputs):
        raise ValueError(
            "this model draws random numbers in its forward pass, so no two runs of it are the same: turn that off for "
            "the comparison, which can repeat only torch.nn.functional.dropout (torch.nn.Dropout calls it)"
        )


def _seeded(model: Callable[[], SequenceModel], rank: int) -> SequenceModel:
    torch.manual_seed(1000 + rank)
    return model().double()


def _after_step(strategy: Strategy, batch: Batch) -> Report:
    value, _ = strategy.step(strategy.share(batch))
    return value.item(), strategy.full_gradients(), strategy.full_state()


def _compare_all(ranks: int, reports: list[list[Report]], references: list[Report]) -> Proof:
    steps = [
        _compare(number + 1, rank, reports[rank][number], reference)
        for number, reference in enumerate(references)
        for rank in range(ranks)
    ]
    return Proof(ranks, tuple(steps))


def _compare(number: int, rank: int, report: Report, reference: Report) -> Step:
    loss, gradients, parameters = report
    true_loss, true_gradients, true_parameters = reference
    pairs = {"parameters": (parameters, true_parameters), "gradients": (gradients, true_gradients)}
    for kind, (actual, expected) in pairs.items():
        if odd := sorted(actual.keys() ^ expected.keys()):
            owner = (
                "the whole model has and it does not" if odd[0] in expected else "it has and the whole model does not"
            )
            raise ValueError(f"rank {rank} reports different {kind} than the whole model has: {odd[0]}, which {owner}")
    parameters_off = {name: _distance(parameters[name], true_parameters[name]) for name in parameters}
    gradients_off = {name: _distance(gradients[name], true_gradients[name]) for name in gradients}
    worst = max(gradients_off, key=lambda name: gradients_off[name])
    loss_off = _distance(*torch.tensor([loss, true_loss], dtype=torch.float64))
    return Step(number, rank, max(gradients_off.values()), max(parameters_off.values()), loss_off, worst)


def _distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference between two tensors; infinite if one has a NaN."""
    return (actual - expected).abs().nan_to_num(nan=float("inf")).max().item()
