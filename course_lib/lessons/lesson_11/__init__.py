"""The capstone: training jobs for the learner's own strategy, and the same jobs in one process.

Functions that run on the ranks import what they need inside their bodies, because they are sent by value.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from course_lib.core.batch import Batch
    from course_lib.core.strategy import Strategy

Job = dict[str, Any]  # model, data and training options as plain data: see `new_job`
FEATURES, VOCABULARY, HIDDEN = 2, 5, 3
OTHER_WEIGHTS = 100  # added to the rank: the seed of the object that resumes from a checkpoint


def new_job(lengths: list[list[int]], seed: int, **others: Any) -> Job:
    """Return a job; `lengths` has the sequence lengths of each update's batch."""
    usual = {"replicas": 1, "micro_batches": 1, "layers": 2, "tokens": False, "sparse": False}
    how = {"carry_state": False, "clip": None, "cut": None, "measured": False}
    return {**usual, **how, **others, "lengths": lengths, "seed": seed}


def model_of(job: Job, rank: int) -> Any:
    """Return the model that this rank creates, from a seed that depends on the rank."""
    import torch

    from course_lib.core.model import lstm_model

    torch.manual_seed(job["seed"] + 17 * rank)
    way_in = {"vocabulary": VOCABULARY} if job["tokens"] else {"features": FEATURES}
    return lstm_model(hidden=HIDDEN, layers=job["layers"], **way_in).double()


def batches_of(job: Job) -> list[Batch]:
    """Return the global batches, one per update."""
    import torch

    from course_lib.core.batch import pad

    generator = torch.Generator().manual_seed(job["seed"])
    batches = []
    for lengths in job["lengths"]:
        if job["tokens"]:
            tokens = [torch.randint(VOCABULARY, (2, n), generator=generator) for n in lengths]
            sequences, targets = [pair[0] for pair in tokens], [pair[1] for pair in tokens]
        else:
            sequences = [torch.randn(n, FEATURES, generator=generator, dtype=torch.float64) for n in lengths]
            targets = [torch.randn(n, generator=generator, dtype=torch.float64) for n in lengths]
        masks = None
        if job["sparse"]:
            masks = [torch.rand(n, generator=generator) < 0.5 for n in lengths]
            masks[0][0] = True  # at least one step counts
        batches.append(pad(sequences, targets, masks))
    return batches


def loss_of(job: Job) -> Any:
    from course_lib.core.model import cross_entropy, squared_error

    return cross_entropy if job["tokens"] else squared_error


def adam(parameters: Any) -> Any:
    """Return an Adam with a large eps: with a nearly zero gradient, a small eps would amplify rounding errors."""
    import torch

    return torch.optim.Adam(parameters, lr=0.05, eps=1e-2)


def after(trained: Strategy, batch: Batch) -> dict[str, Any]:
    """Run one update, and return its loss, count, gradients and state on this rank."""
    loss, count = trained.step(trained.share(batch))
    found = {name: shard.tensor.grad for name, shard in trained.shards().items()}
    gradients = {name: None if gradient is None else gradient.clone() for name, gradient in found.items()}
    return {"loss": float(loss), "count": int(count), "gradients": gradients, "state": state_of(trained)}


def state_of(trained: Strategy) -> dict[str, Any]:
    """Return the parameters of this rank, by their names in the whole model."""
    return {name: shard.tensor.detach().clone() for name, shard in trained.shards().items()}


@contextmanager
def watching_for_ours() -> Iterator[list[str]]:
    """Yield a list that collects the names of the course's own solution classes as they are instantiated."""
    from course_lib.model_parallel.model_parallel import ModelParallel
    from course_lib.pipeline.pipeline import Execution, Pipeline
    from course_lib.pipeline.stage import Stage
    from course_lib.sharding.hybrid import GradientSum, Hybrid

    made: list[str] = []
    kinds: tuple[Any, ...] = (Hybrid, Pipeline, ModelParallel, Stage, Execution, GradientSum)
    originals = [kind.__init__ for kind in kinds]

    def noting(kind: type, original: Any) -> Any:
        def init(self: Any, *arguments: Any, **keywords: Any) -> None:
            made.append(kind.__name__)
            original(self, *arguments, **keywords)

        return init

    for kind, original in zip(kinds, originals, strict=True):
        kind.__init__ = noting(kind, original)
    try:
        yield made
    finally:
        for kind, original in zip(kinds, originals, strict=True):
            kind.__init__ = original


def derives_from_ours(kind: type) -> list[str]:
    """Return the names of the course's own strategies among the base classes of this class."""
    ours = ("Hybrid", "Pipeline", "ModelParallel")
    return [
        base.__name__ for base in kind.__mro__ if base.__module__.startswith("course_lib.") and base.__name__ in ours
    ]


def copies_of_ours(trained: Strategy) -> list[str]:
    """Return the names of the course's own classes whose code this object runs, under whatever name."""
    from types import FunctionType, ModuleType

    from course_lib.core.strategy import Strategy
    from course_lib.model_parallel import model_parallel
    from course_lib.pipeline import pipeline, stage
    from course_lib.sharding import hybrid

    long, several = 60, 3  # bytes of a function that is too long to match by chance; matches that prove a copy

    def functions(kind: type) -> list[Any]:
        members = (getattr(each, "fget", None) or getattr(each, "__func__", each) for each in vars(kind).values())
        return [each for each in members if isinstance(each, FunctionType)]

    modules = (hybrid, pipeline, model_parallel, stage)
    kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    ours = {kind for kind in kinds if kind.__module__ in [module.__name__ for module in modules]}
    names = {
        f.__code__.co_code: kind.__name__ for kind in ours for f in functions(kind) if len(f.__code__.co_code) > long
    }
    known = {*Strategy.__mro__, *ours}
    new: list[Any] = [type(trained), *map(type, vars(trained).values())]
    found: dict[bytes, str] = {}
    while new:
        each = new.pop()
        if isinstance(each, ModuleType) or each in known or not _is_new_code(each):
            continue
        known.add(each)
        new += each.__mro__ if isinstance(each, type) else []
        for function in functions(each) if isinstance(each, type) else [each]:
            code = function.__code__
            found |= {code.co_code: names[code.co_code]} if code.co_code in names else {}
            values = (function.__globals__.get(name) for name in code.co_names)
            new += [value for value in values if isinstance(value, (type, FunctionType))]
    return sorted(set(found.values())) if len(found) >= several else []


def _is_new_code(thing: Any) -> bool:
    """Return whether a class or function is not the one that a known library has under that name."""
    import sys

    known = thing.__module__.partition(".")[0] in {"course_lib", "torch", "numpy", *sys.stdlib_module_names} - {
        "__main__"
    }
    return not known or getattr(sys.modules.get(thing.__module__), thing.__qualname__, thing) is not thing


@contextmanager
def counting_parameters() -> Iterator[Callable[[], int]]:
    """Yield a function that counts the numbers in live parameters created inside this block."""
    import gc

    from torch.nn import Parameter

    def numbers() -> int:
        gc.collect()
        return sum(each.numel() for each in gc.get_objects() if type(each) is Parameter)

    gc.freeze()  # skip the many objects that already exist
    try:
        yield numbers
    finally:
        gc.unfreeze()
