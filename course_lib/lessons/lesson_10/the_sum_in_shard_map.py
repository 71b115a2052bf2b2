"""10.4 The sum in shard_map: the check, and the common mistakes it recognizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, differs, seeded
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import a_mean_of_means, says

DEVICES = 4


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, counts: list[int], says: str, axis: str = "data") -> Case:
        steps = max(counts) + 1
        inputs = torch.randn(len(counts), steps, 3, generator=generator, dtype=torch.float64)
        mask = (torch.arange(steps) < torch.tensor(counts).unsqueeze(-1)).double()
        weights = torch.randn(3, generator=generator, dtype=torch.float64)
        return Case(part, 1, {"weights": weights, "inputs": inputs, "mask": mask, "axis": axis}, says)

    return [
        case("uneven counts", [1, 3], "1 and 3 steps that count on 2 devices"),
        case("uneven counts", [2, 2, 2, 3], "2, 2, 2 and 3 steps on 4 devices of the axis 'rows'", "rows"),
        case("uneven counts", [1, 2, 4, 5], "1, 2, 4 and 5 steps on 4 devices"),
        case("nothing on a device", [0, 2], "no step that counts on the first of 2 devices"),
        case("nothing on a device", [3, 0, 1, 0], "3, 0, 1 and 0 steps on 4 devices of the axis 'hosts'", "hosts"),
    ]


def drive(answer: Callable, weights: Tensor, inputs: Tensor, mask: Tensor, axis: str) -> Tensor:
    from course_lib.frameworks.other_frameworks import prepare_jax

    prepare_jax(DEVICES)
    import jax
    import numpy
    from jax.sharding import Mesh, PartitionSpec

    def losses(weights: Any, inputs: Any) -> Any:
        return jax.numpy.tanh(inputs @ weights) ** 2

    def on_device(weights: Any, inputs: Any, mask: Any) -> Any:
        return answer(losses, weights, inputs, mask, axis)

    mesh = Mesh(numpy.array(jax.devices()[: len(inputs)]), (axis,))
    cut, whole = PartitionSpec(axis), PartitionSpec()
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=(whole, cut, cut), out_specs=whole)
    return torch.tensor(numpy.asarray(jax.jit(mapped)(*(array.numpy() for array in (weights, inputs, mask)))))


def judge(case: Case, values: list) -> str | None:
    return differs(values[0], _right(case), "the gradient")


def _right(case: Case) -> Tensor:
    return _gradient(case, lambda losses, mask: (losses * mask).sum() / mask.sum())


def _gradient(case: Case, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the gradient of `loss`, a function of the (devices, steps) losses and their mask."""
    weights = case.inputs["weights"].clone().requires_grad_()
    value = loss(torch.tanh(case.inputs["inputs"] @ weights) ** 2, case.inputs["mask"])
    return torch.autograd.grad(value, weights)[0]


def _is(case: Case, values: list, *losses: Callable[[Tensor, Tensor], Tensor]) -> bool:
    value = values[0]
    wrong = [_gradient(case, loss) for loss in losses]
    return differs(value, _right(case)) is not None and any(differs(value, each) is None for each in wrong)


def _own_means(losses: Tensor, mask: Tensor) -> Tensor:
    return (losses * mask).sum(dim=1) / mask.sum(dim=1)


def sums_again(case: Case, values: list) -> bool:
    """It is too large by a factor of the number of devices. This is what you get from a `psum` of the gradient: the
    weights are the same on all devices, so `jax.grad` has summed their gradient already. It is also what you get if you
    divide by the mean of the devices' counts: `psum` gives their sum.
    """
    devices = len(case.inputs["inputs"])
    return _is(case, values, lambda losses, mask: devices * (losses * mask).sum() / mask.sum())


def is_a_mean_per_device(case: Case, values: list) -> bool:
    """Each device divides by its own count, and the gradients are summed: they are too large, and a device with few
    steps weighs as much as one with many. Use `psum` to get the count of all devices.
    """
    devices = len(case.inputs["inputs"])
    means = (
        lambda losses, mask: _own_means(losses, mask).sum(),
        lambda losses, mask: devices * _own_means(losses, mask).sum(),
    )
    return _is(case, values, *means) or (bool(values[0].isnan().any()) and not _right(case).isnan().any())


@says(a_mean_of_means("a step", "device", ", as `pmean` takes it"))
def is_a_mean_of_means(case: Case, values: list) -> bool:
    return _is(case, values, lambda losses, mask: _own_means(losses, mask).mean())


def counts_a_step_too_many(case: Case, values: list) -> bool:
    """Each device without steps counts as one step, so you divide by too large a count. Divide by `psum(mask.sum())`
    itself: over all devices, it is never 0.
    """
    empty = bool((case.inputs["mask"].sum(dim=1) == 0).any())
    return empty and _is(case, values, lambda losses, mask: (losses * mask).sum() / mask.sum(dim=1).clamp(min=1).sum())


def divides_by_the_devices(case: Case, values: list) -> bool:
    """It is too small by a factor of the number of devices: something divides by it, as `pmean` does, besides the
    division by the global count. Divide by that count alone.
    """
    devices = len(case.inputs["inputs"])
    return _is(case, values, lambda losses, mask: (losses * mask).sum() / mask.sum() / devices)


def never_divides(case: Case, values: list) -> bool:
    """This is the gradient of the sum. Divide by the number of steps that count on all devices, `psum(mask.sum())`."""
    devices = len(case.inputs["inputs"])
    sums = (lambda losses, mask: (losses * mask).sum(), lambda losses, mask: devices * (losses * mask).sum())
    return _is(case, values, *sums)


def counts_padding(case: Case, values: list) -> bool:
    """Steps that do not count are included: multiply the losses by the mask, and divide by the sum of the mask."""
    ways = (
        lambda losses, mask: losses.sum() / mask.sum(),
        lambda losses, mask: (losses * mask).sum() / mask.numel(),
        lambda losses, mask: losses.mean(),
        lambda losses, mask: losses.mean(dim=1).sum(),
    )
    return _is(case, values, *ways)


EXERCISE = Exercise(
    **texts("10.4"),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=(
        sums_again,
        is_a_mean_per_device,
        is_a_mean_of_means,
        counts_a_step_too_many,
        divides_by_the_devices,
        never_divides,
        counts_padding,
    ),
    timeout=20.0,
    modules=("jax",),
)
