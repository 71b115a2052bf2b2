"""07.3 Clip by the norm of the whole: the check, and the common mistakes it recognizes."""

from __future__ import annotations

import math
import operator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Cost, Exercise, differs, same_as, seeded
from course_lib.checks.private import keep
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_07 import bytes_put_in, own_group
from course_lib.lessons.symptoms import CLIPPED_BY_ITS_OWN_NORM, CLIPPED_EACH_NUMBER, STRETCHED, observed, says

LARGE = 500  # numbers in a parameter: far more than a rank may send
BUDGET = 1000  # bytes


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, replicas: int, sizes: list[list[int]], limit: float | None, says: str) -> Case:
        """Make gradients of these sizes for each stage (0: a frozen parameter); `limit` is a multiple of their norm."""
        gradients = [
            [torch.randn(size, generator=generator) * (limit is not None) if size else None for size in stage]
            for stage in sizes
        ]
        times = limit or 1.0
        limit = times * (norm_of(gradients) or 1.0)
        says = f"a mesh of {replicas} x {len(sizes)}, {says}"
        inputs = {"gradients": gradients, "limit": limit, "replicas": replicas}
        return Case(part, replicas * len(sizes), inputs, says)

    stage, frozen, large = [2, 2, 0], [0, 0, 0], [LARGE, LARGE, 0]
    return [
        case("the norm", 2, [stage] * 2, 0.5, "a norm of twice the limit"),
        case("the norm", 2, [stage, [0, 5, 1]], 0.01, "a norm of 100 times the limit"),
        case("the norm", 4, [[3, 0, 4]], 0.2, "a norm of five times the limit"),
        case("the norm", 1, [stage, [1, 2, 3], stage, [0, 3, 0]], 0.5, "a norm of twice the limit"),
        case("the norm", 2, [stage, frozen], 0.5, "the second stage frozen"),
        case("the norm", 2, [large] * 2, 0.5, f"parameters of {LARGE} numbers"),
        case("no more than needed", 2, [stage] * 2, 1.2, "a norm just below the limit"),
        case("no more than needed", 2, [stage, [1, 1, 1]], 50.0, "a norm far below the limit"),
        case("no more than needed", 1, [stage, frozen, stage, stage], 1.01, "a norm below the limit, one stage frozen"),
        case("no more than needed", 2, [stage, stage], None, "a gradient of zeros"),
    ]


def norm_of(gradients: list[list[Tensor | None]]) -> float:
    return math.hypot(*(stage_norm(stage) for stage in gradients))


def stage_norm(gradients: list[Tensor | None]) -> float:
    return math.hypot(*(gradient.norm().item() for gradient in gradients if gradient is not None))


def of_stage(gradients: list, rank: int, ranks: int) -> list:
    """Return the part of the gradients that one rank receives: its stage's."""
    return keep(gradients, rank % len(gradients))


def drive(answer, gradients: list[list[Tensor | None]], limit: float, replicas: int):
    from course_lib.core.metering import meter

    stages = len(gradients)
    row = own_group([list(range(r * stages, (r + 1) * stages)) for r in range(replicas)])
    column = own_group([list(range(s, replicas * stages, stages)) for s in range(stages)])
    own = gradients[dist.get_rank() % stages]
    model = nn.ParameterList(nn.Parameter(torch.zeros(2) if one is None else torch.zeros_like(one)) for one in own)
    for parameter, gradient in zip(model, own, strict=True):
        parameter.grad = gradient
    with meter() as spent:
        norm = answer(model, limit, row, column)
    return {"norm": norm, "gradients": [parameter.grad for parameter in model], "bytes": bytes_put_in(spent.as_data())}


def judge(case: Case, values: list) -> str | None:
    compared = [{name: value[name] for name in ("norm", "gradients")} for value in values]
    return same_as(expected)(case, compared)


def costs(case: Case, values: list) -> list[Cost]:
    if not any(gradient is not None and gradient.numel() == LARGE for gradient in case.inputs["gradients"][0]):
        return []
    return [Cost("bytes that a rank puts into collectives and messages", max(v["bytes"] for v in values), BUDGET)]


def expected(case: Case) -> list[dict]:
    gradients, limit, replicas = case.inputs.values()
    norm = norm_of(gradients)
    return [
        {"norm": norm, "gradients": of_stage} for of_stage in clipped(gradients, limit / max(norm, limit))
    ] * replicas


def clipped(gradients: list, factor: float) -> list[list]:
    return [[None if one is None else factor * one for one in stage] for stage in gradients]


def norms_are(case: Case, values: list, of_stage: list[float]) -> bool:
    """Return whether the ranks returned their stages' values from `of_stage`, and these values are not right."""
    norms, right = [value["norm"] for value in values], norm_of(case.inputs["gradients"])
    wanted = of_stage * case.inputs["replicas"]
    return differs(norms, wanted) is None and differs(wanted, [right] * len(norms)) is not None


def gradients_are(case: Case, values: list, of_stage: list[list]) -> bool:
    return differs([value["gradients"] for value in values], of_stage * case.inputs["replicas"]) is None


def norm_is_right(case: Case, values: list) -> bool:
    return differs([value["norm"] for value in values], [norm_of(case.inputs["gradients"])] * len(values)) is None


def own_norms(case: Case) -> list[float]:
    return [stage_norm(stage) for stage in case.inputs["gradients"]]


@says(CLIPPED_BY_ITS_OWN_NORM)
def own_norm(case: Case, values: list) -> bool:
    several = sum(norm > 0 for norm in own_norms(case)) > 1  # otherwise, one stage's norm is the norm of the whole
    return several and norms_are(case, values, own_norms(case))


@observed
def frozen_ones_return_nothing(case: Case, values: list) -> bool:
    """The ranks whose stage has a gradient return the right norm, and those whose stage is frozen do not. It is the
    norm of the whole model: the result of the sum is the same on every rank, even on one that contributed nothing.
    """
    right, norms = norm_of(case.inputs["gradients"]), own_norms(case) * case.inputs["replicas"]
    known = [differs(value["norm"], right) is None for value in values]
    return not all(norms) and known == [norm > 0 for norm in norms]


def norms_added(case: Case, values: list) -> bool:
    """You add up norms. Only their *squares* add up: take the root once, at the end."""
    stages = case.inputs["gradients"]
    each = [sum(stage_norm([one]) for one in stage if one is not None) for stage in stages]
    sums = [sum(own_norms(case)), sum(each), math.hypot(*each)]
    return any(norms_are(case, values, [total] * len(stages)) for total in sums)


def squares_without_root(case: Case, values: list) -> bool:
    """This is the square of the norm: the root is missing."""
    gradients = case.inputs["gradients"]
    return norms_are(case, values, [norm_of(gradients) ** 2] * len(gradients))


def counts_replicas_again(case: Case, values: list) -> bool:
    """You add up the squares over all ranks. All replicas hold the same gradient: it counts once, not once for each
    replica. One row has the whole model.
    """
    replicas, gradients = case.inputs["replicas"], case.inputs["gradients"]
    return norms_are(case, values, [math.sqrt(replicas) * norm_of(gradients)] * len(gradients))


def over_the_column(case: Case, values: list) -> bool:
    """You add up over the column: the same stage, once for each replica. The stages of one replica are in a row."""
    return norms_are(case, values, [math.sqrt(case.inputs["replicas"]) * norm for norm in own_norms(case)])


def mean_over_stages(case: Case, values: list) -> bool:
    """You take a mean over the stages, of their norms or of their squares. *Add up* the squares instead."""
    norms, stages = own_norms(case), len(case.inputs["gradients"])
    means = [sum(norms) / stages, math.hypot(*norms) / math.sqrt(stages)]
    return any(norms_are(case, values, [mean] * stages) for mean in means)


def largest_of_the_stages(case: Case, values: list) -> bool:
    """You take the largest of the stages' norms, or the largest number. The norm is the root of the sum of the squares
    of all numbers.
    """
    gradients = case.inputs["gradients"]
    numbers = [one.abs().max().item() for stage in gradients for one in stage if one is not None]
    return any(norms_are(case, values, [found] * len(gradients)) for found in (max(own_norms(case)), max(numbers)))


def norm_after_clipping(case: Case, values: list) -> bool:
    """You return the norm of the gradient *after* clipping. Return the norm *before* clipping: it shows how training is
    going.
    """
    return norms_are(case, values, [case.inputs["limit"]] * len(case.inputs["gradients"]))


@says(STRETCHED)
def always_to_the_limit(case: Case, values: list) -> bool:
    gradients, limit, _ = case.inputs.values()
    norm = norm_of(gradients)
    return 0 < norm < limit and gradients_are(case, values, clipped(gradients, limit / norm))


@observed
def nothing_is_left_of_zeros(case: Case, values: list) -> bool:
    """The gradient is all zeros, and so is its norm. You divide by it, and the result is nan. Divide only if the norm
    is above the limit.
    """
    numbers = (one for value in values for one in value["gradients"] if isinstance(one, Tensor))
    return norm_of(case.inputs["gradients"]) == 0 and any(not one.isfinite().all() for one in numbers)


@observed
def not_in_place(case: Case, values: list) -> bool:
    """The norm is right, but the gradients are unchanged: multiply `.grad` in place. A new tensor in a local variable
    changes nothing in the model.
    """
    return norm_is_right(case, values) and gradients_are(case, values, case.inputs["gradients"])


def each_by_its_own_factor(case: Case, values: list) -> bool:
    """The norm that you return is right, but the stages shrink by different factors, each by its own norm. Multiply all
    gradients by the same factor, or the direction of the whole gradient changes.
    """
    gradients, limit, _ = case.inputs.values()
    scaled = [clipped([stage], min(1.0, limit / max(stage_norm(stage), 1e-9)))[0] for stage in gradients]
    return norm_is_right(case, values) and gradients_are(case, values, scaled)


def each_parameter_by_its_own_norm(case: Case, values: list) -> bool:
    """Each parameter's gradient is clipped by its own norm, so the parameters shrink by different factors and the
    gradient changes direction. Multiply all of them by the same factor, limit / norm of the whole.
    """
    gradients, limit, _ = case.inputs.values()
    factors = [[1.0 if one is None else min(1.0, limit / max(stage_norm([one]), 1e-9)) for one in s] for s in gradients]
    pairs = zip(gradients, factors, strict=True)
    scaled = [[one if one is None else f * one for one, f in zip(*pair, strict=True)] for pair in pairs]
    return gradients_are(case, values, scaled)


@observed
def only_some_ranks_clip(case: Case, values: list) -> bool:
    """Some ranks have clipped gradients, and others have theirs as they were: every rank must multiply its own
    gradients by the same factor.
    """
    stages = case.inputs["gradients"] * case.inputs["replicas"]
    kept = [differs(value["gradients"], stage) is None for value, stage in zip(values, stages, strict=True)]
    right = [differs(value["gradients"], each["gradients"]) is None for value, each in pairs_of(case, values)]
    return any(right) and not all(right) and all(map(operator.or_, kept, right))


@observed
def gives_frozen_ones_a_gradient(case: Case, values: list) -> bool:
    """A frozen parameter has a gradient after the call: zeros instead of None. An optimizer with weight decay or
    momentum would now move it. Skip parameters whose `.grad` is None.
    """
    found = [
        [None if one is None else had for one, had in zip(each["gradients"], value["gradients"], strict=True)]
        for value, each in pairs_of(case, values)
    ]
    without = [{**value, "gradients": gradients} for value, gradients in zip(values, found, strict=True)]
    return judge(case, values) is not None and judge(case, without) is None


def pairs_of(case: Case, values: list) -> list[tuple[dict, dict]]:
    """Return each rank's values with what they should be."""
    return list(zip(values, expected(case), strict=True))


@says(CLIPPED_EACH_NUMBER)
def clips_each_number(case: Case, values: list) -> bool:
    gradients, limit, _ = case.inputs.values()
    cut = [[None if one is None else one.clamp(-limit, limit) for one in stage] for stage in gradients]
    return gradients_are(case, values, cut)


def sends_gradients(case: Case, values: list) -> bool:
    """You send whole gradients to other ranks to take their norm there. The other ranks need only one number: the
    stage's sum of squares.
    """
    return judge(case, values) is None


EXERCISE = Exercise(
    **texts("07.3"),
    cases=cases,
    drive=drive,
    private={"gradients": of_stage},
    judge=judge,
    costs=costs,
    symptoms=(
        sends_gradients,
        squares_without_root,
        counts_replicas_again,
        over_the_column,
        frozen_ones_return_nothing,
        own_norm,
        norms_added,
        mean_over_stages,
        largest_of_the_stages,
        norm_after_clipping,
        always_to_the_limit,
        nothing_is_left_of_zeros,
        not_in_place,
        clips_each_number,
        each_by_its_own_factor,
        each_parameter_by_its_own_norm,
        only_some_ranks_clip,
        gives_frozen_ones_a_gradient,
    ),
)
