"""The same result as one process: the proof that every strategy of the course must pass."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.core.batch import Batch
from course_lib.core.model import Loss, SequenceModel, own_random_numbers, untouched
from course_lib.core.shards import NamedTensors, check_outlines, gather_outlines
from course_lib.core.strategy import MakeOptimizer, Single, Strategy, broadcast_weights, check_is_strategy
from course_lib.launcher.notebook.launch import launch
from course_lib.runtime import trace
from course_lib.runtime.words import counted

TOLERANCE = 1e-10
TRIAL_TOLERANCE = 1e-6  # a block of your own may compute a part in float32
AfterUpdate = tuple[float, NamedTensors, NamedTensors]  # the loss, the gradients and the parameters


@dataclass(frozen=True)
class Difference:
    """The largest differences between a rank and the single process after one update, and where the worst one is."""

    number: int  # of the update, from 1
    rank: int
    gradients: float
    parameters: float
    loss: float
    worst: str  # the parameter whose gradient is off the most

    @property
    def same(self) -> bool:
        return max(self.gradients, self.parameters, self.loss) <= TOLERANCE


@dataclass(frozen=True)
class Proof:
    """The comparison after every update on every rank, in `steps`. It is truthy if all of them agree."""

    ranks: int
    steps: tuple[Difference, ...]  # one for each update and rank

    def __bool__(self) -> bool:
        return all(step.same for step in self.steps)

    def __repr__(self) -> str:
        if self:
            updates = len({step.number for step in self.steps})
            return (
                f"the same as one process: {counted(self.ranks, 'rank')}, after each of {updates} updates, "
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
    (proof,) = prove_all([options], strategy, ranks, model, batches, optimizer, loss)
    return proof


def prove_all(
    variations: Sequence[dict[str, Any]],
    strategy: Callable[..., Strategy],
    ranks: int,
    model: Callable[[], SequenceModel],
    batches: Sequence[Batch],
    optimizer: MakeOptimizer,
    loss: Loss,
) -> list[Proof]:
    """Return one proof for each set of options, tested one after another on the same ranks."""
    with own_random_numbers(), dropout_by_feature():
        _check_draws_nothing(_seeded(model, rank=0), batches[0])

    def train_on_ranks() -> list[list[AfterUpdate]]:
        reports = []
        for options in variations:
            trained = strategy(_seeded(model, dist.get_rank()), optimizer, loss, **options)
            check_is_strategy(trained)
            check_outlines(gather_outlines(trained.checked_shards()))
            with dropout_by_feature():
                reports.append([_update(trained, batch) for batch in batches])
        return reports

    @cache
    def train_twin(**options: Any) -> list[AfterUpdate]:
        with own_random_numbers(), dropout_by_feature():  # restores the caller's random numbers
            twin = Single(_seeded(model, rank=0), optimizer, loss, **options)
            return [_update(twin, batch) for batch in batches]

    run = launch(train_on_ranks, ranks=ranks, timeout=60 * len(variations))
    proofs = []
    for number, options in enumerate(variations):
        twin = train_twin(**{name: options[name] for name in ("carry_state", "clip") if name in options})
        steps = [
            _compare(update + 1, rank, run[rank][number][update], expected)
            for update, expected in enumerate(twin)
            for rank in range(ranks)
        ]
        proofs.append(Proof(ranks, tuple(steps)))
    return proofs


def check_blocks(make: Callable[..., Strategy], model: SequenceModel, loss: Loss, batch: Batch) -> None:
    """Refuse blocks of your own that the strategy from `make` would not train as one process does. All ranks call this.

    Each rank compares one update of a few steps of `batch`, by the strategy and by one process, in float64. Both train
    copies of the model, so the run itself is unaffected. The course's own blocks need no trial.
    """
    foreign = [
        f"block {place} ({type(block).__name__})"
        for place, block in model.numbered()
        if not type(block).__module__.startswith("course_lib.")
    ]
    if not foreign:
        return
    sgd = partial(torch.optim.SGD, lr=1.0)  # Adam would make a whole step of a gradient that is only rounding
    with own_random_numbers(), dropout_by_feature(), trace.paused():
        whole = copy.deepcopy(model).double()
        trial = make(copy.deepcopy(whole), optimizer=sgd, loss=loss, clip=None, autocast=None)
        broadcast_weights(whole.to(trial.device))
        sequences = min(batch.sequences, 2 * trial.shares * trial.micro_batches)
        few = batch.rows(range(sequences)).between(0, min(batch.steps, max(6, 2 * trial.chunks)))
        inputs, targets = (t.double() if t.is_floating_point() else t for t in (few.inputs, few.targets))
        few = Batch(inputs, targets, few.lengths, few.valid).to(trial.device)
        size = f"{counted(few.steps, 'step')} of {counted(few.sequences, 'sequence')}"
        try:  # alone first: what fails here fails on every rank, and leaves none waiting for another
            _check_draws_nothing(whole, few)
            expected = _update(Single(whole, sgd, loss, carry_state=trial.carry_state), few)
        except Exception as error:  # your block may raise anything
            if trial.rank == 0:
                reason = " ".join(str(error).split())
                warnings.warn(
                    f"{', '.join(foreign)}: one process cannot train {size} in float64 ({reason}), so we cannot know "
                    "whether this strategy gives the same result: compare it with same_as_one_process",
                    stacklevel=2,
                )
            return
        off = _compare(1, trial.rank, _update(trial, few), expected)
    if max(off.gradients, off.loss) > TRIAL_TOLERANCE:
        raise ValueError(
            f"{type(trial).__name__} does not train {', '.join(foreign)} as one process does: after one update on "
            f"{size}, rank {off.rank} is off by {off.gradients:.1g} in the gradients (most in {off.worst}) and "
            f"{off.loss:.1g} in the loss. A block must compute each sequence separately, and keep what it needs of "
            "earlier steps in its state: change the block, cut the batch less, or train with single"
        )


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


def _update(strategy: Strategy, batch: Batch) -> AfterUpdate:
    value, _ = strategy.step(strategy.share(batch))
    return value.item(), strategy.full_gradients(), strategy.full_state()


def _compare(number: int, rank: int, found: AfterUpdate, twin: AfterUpdate) -> Difference:
    off = []
    for kind, actual, expected in zip(("gradients", "parameters"), found[1:], twin[1:], strict=True):
        if odd := sorted(actual.keys() ^ expected.keys()):
            has = "the whole model has and it does not" if odd[0] in expected else "it has and the whole model does not"
            raise ValueError(f"rank {rank} reports different {kind} than the whole model has: {odd[0]}, which {has}")
        off.append({name: _distance(actual[name], expected[name]) for name in actual})
    gradients, parameters = off
    worst = max(gradients, key=gradients.get)
    loss = _distance(*torch.tensor([found[0], twin[0]], dtype=torch.float64))
    return Difference(number, rank, gradients[worst], max(parameters.values()), loss, worst)


def _distance(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference between two tensors; infinite if one has a NaN."""
    return (actual - expected).abs().nan_to_num(nan=float("inf")).max().item()
