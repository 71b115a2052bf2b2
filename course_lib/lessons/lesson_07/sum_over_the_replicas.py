"""07.2 Sum over the replicas: the check, and the common mistakes it recognizes."""

from __future__ import annotations

import inspect
import sys
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Cost, Exercise, differs, same_as, seeded
from course_lib.checks.private import hollow, keep
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_07 import bytes_put_in, own_group, table
from course_lib.lessons.symptoms import COUNTED_ON_EVERY_STAGE, a_mean_of_means, observed, says

LARGE = 500  # numbers in a gradient: enough that the count's bytes don't matter


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, widths: list[int], counts: list[int], says: str) -> Case:
        gradients = [
            [torch.randn(width, generator=generator, dtype=torch.float64) * min(count, 1) for width in widths]
            for count in counts
        ]
        says = f"{table(len(counts), len(widths))}, {says}"
        return Case(part, len(widths) * len(counts), {"gradients": gradients, "counts": counts}, says)

    return [
        case("the right ranks", [2, 2], [3, 3], "3 tokens in each replica"),
        case("the right ranks", [2, 3], [7, 7], "7 tokens in each, and stages of another size"),
        case("the right ranks", [2], [3, 3, 3, 3], "3 tokens in each"),
        case("the right ranks", [2, 3, 2, 2], [7], "7 tokens"),
        case("the right ranks", [3, 3, 3], [5, 5], "5 tokens in each"),
        case("the right ranks", [2, 2], [5, 5, 5], "5 tokens in each"),
        case("the right ranks", [LARGE, LARGE], [3, 3], f"3 tokens in each, and {LARGE} numbers in each gradient"),
        case("the right count", [2, 2], [5, 1], "5 tokens and 1 token"),
        case("the right count", [3, 2], [2, 1000], "2 tokens and 1,000"),
        case("the right count", [2, 2], [2, 7, 1], "2, 7 and 1 tokens"),
        case("a replica without tokens", [2, 2], [3, 0], "3 tokens, and none in replica 1"),
        case("a replica without tokens", [2, 3], [0, 7], "7 tokens, and none in replica 0"),
        case("a replica without tokens", [2, 2], [0, 5, 0], "5 tokens in replica 1, and none in the others"),
        case("a replica without tokens", [2, 2], [0, 0, 1], "1 token in replica 2, and none in the others"),
    ]


def own_gradient(gradients: list[list[Tensor]], rank: int, ranks: int) -> list[list[Tensor]]:
    """Return the part of the gradients that one rank receives: its stage's, in its replica."""
    replica, stage = divmod(rank, len(gradients[0]))
    return [keep(each, stage) if place == replica else hollow(each) for place, each in enumerate(gradients)]


def own_count(counts: list[int], rank: int, ranks: int) -> list[int]:
    """Return the part of the counts that one rank receives: its replica's."""
    return keep(counts, rank * len(counts) // ranks)


def drive(answer, gradients: list[list[Tensor]], counts: list[int]):
    from course_lib.core.metering import meter

    replica, stage = divmod(dist.get_rank(), len(gradients[0]))
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros_like(gradients[replica][stage]))
    model.weight.grad = gradients[replica][stage]
    with meter() as spent, noting_new_groups() as groups:
        answer(model, counts[replica], len(counts))
    return {"weight.grad": model.weight.grad, "bytes": bytes_put_in(spent.as_data()), "groups": groups}


@contextmanager
def noting_new_groups():
    """Yield a list that collects the ranks of each group that this rank makes together with all others.

    `new_group` is not wrapped: if a call hangs, the explanation would show the wrapper instead of the answer's line.
    """
    made, code, before = [], inspect.unwrap(dist.new_group).__code__, sys.getprofile()

    def note(frame, event, _):
        if event == "call" and frame.f_code is code and not frame.f_locals.get("use_local_synchronization"):
            ranks = frame.f_locals.get("ranks")
            made.append(None if ranks is None else list(map(int, ranks)))

    sys.setprofile(note)
    try:
        yield made
    finally:
        sys.setprofile(before)


def judge(case: Case, values: list) -> str | None:
    first = values[0]["groups"]
    for rank, value in enumerate(values):
        if value["groups"] != first:
            return f"rank 0 calls `new_group` for {first}, rank {rank} for {value['groups']}"
    return same_as(expected)(case, [{"weight.grad": value["weight.grad"]} for value in values])


def costs(case: Case, values: list) -> list[Cost]:
    own = case.inputs["gradients"][0][0]
    if own.numel() < LARGE:
        return []
    spent = max(value["bytes"] for value in values)
    return [Cost("bytes that a rank puts into collectives and messages", spent, 1.5 * own.numel() * own.itemsize)]


def expected(case: Case) -> list[dict]:
    sums, tokens = over_columns(case), sum(case.inputs["counts"])
    return [{"weight.grad": gradient / tokens} for gradient in sums]


def over_columns(case: Case) -> list[Tensor]:
    """Return, for each rank, the sum of the gradients in its column."""
    gradients = case.inputs["gradients"]
    return [torch.stack(column).sum(0) for column in zip(*gradients, strict=True)] * len(gradients)


def each(case: Case, values: list) -> list[tuple[Tensor, Tensor, int]]:
    """Return, for each rank, its gradient now, its gradient before, and the count of its replica."""
    gradients, counts = case.inputs["gradients"], case.inputs["counts"]
    had = [(gradient, count) for of_replica, count in zip(gradients, counts, strict=True) for gradient in of_replica]
    return [(value["weight.grad"], *own) for value, own in zip(values, had, strict=True)]


def along(value: Tensor, direction: Tensor) -> bool:
    """Return whether a gradient is a positive multiple of another: the same sum, whatever it was divided by."""
    if value.shape != direction.shape or not value.isfinite().all() or not value.norm() * direction.norm():
        return False
    return bool((value / value.norm() - direction / direction.norm()).abs().max() < 1e-5)


def divided_by(case: Case, values: list, divisors: list[float]) -> bool:
    """Return whether each rank has the sum over its column, divided by its entry in `divisors`."""
    wanted = [total / divisor for total, divisor in zip(over_columns(case), divisors, strict=True)]
    return differs([value["weight.grad"] for value in values], wanted) is None


@observed
def groups_of_their_own(case: Case, values: list) -> bool:
    """The ranks do not make the same process groups in the same order. *All* ranks must call `new_group` for every
    group, even for groups that they are not in, or the wrong ranks end up in a group together.
    """
    return any(value["groups"] != values[0]["groups"] for value in values)


@observed
def as_it_was(case: Case, values: list) -> bool:
    """`.grad` is unchanged. Change it in place, or assign the new gradient to `model.weight.grad`: a result in a local
    variable changes nothing in the model.
    """
    return all(differs(now, before) is None for now, before, _ in each(case, values))


def nothing_summed(case: Case, values: list) -> bool:
    """Each rank has its own replica's mean: nothing was added up over the replicas."""
    had, counts = each(case, values), case.inputs["counts"]
    return len(counts) > 1 and all(counts) and all(along(now, before) for now, before, _ in had)


@observed
def groups_that_are_no_columns(case: Case, values: list) -> bool:
    """None of the groups that you make is a column of the table. Ranks of one column are `stages` apart, and there are
    world size // `replicas` stages.
    """
    replicas, stages = len(case.inputs["gradients"]), len(case.inputs["gradients"][0])
    columns = [list(range(stage, replicas * stages, stages)) for stage in range(stages)]
    groups = [sorted(group) for group in values[0]["groups"] if group is not None]
    return bool(groups) and len(groups) == len(values[0]["groups"]) and not any(group in columns for group in groups)


@observed
def empty_ones_keep_theirs(case: Case, values: list) -> bool:
    """The replicas that have tokens have the right gradient; those without still have their zeros. They need it, too:
    all replicas update their weights with it.
    """
    right, stages = expected(case), len(case.inputs["gradients"][0])
    pairs = zip(values, right, strict=True)
    is_right = [differs(value["weight.grad"], one["weight.grad"]) is None for value, one in pairs]
    return 0 in case.inputs["counts"] and is_right == [
        count > 0 for count in case.inputs["counts"] for _ in range(stages)
    ]


def no_number(case: Case, values: list) -> bool:
    """Some numbers are nan. This is what you get if a replica without tokens divides its zeros by its own count, which
    is zero: add up first, and divide once, by the count of all replicas.
    """
    return 0 in case.inputs["counts"] and any(not now.isfinite().all() for now, _, _ in each(case, values))


def over_everyone(case: Case, values: list) -> bool:
    """You add up over all ranks, including those of other stages, whose gradients belong to other weights. If the
    shapes are equal, this raises no error. Add up over the ranks that hold the *same stage*: the column.
    """
    everything = torch.stack([gradient for replica in case.inputs["gradients"] for gradient in replica]).sum(0)
    return len(case.inputs["gradients"][0]) > 1 and all(along(now, everything) for now, _, _ in each(case, values))


def along_the_row(case: Case, values: list) -> bool:
    """You add up over the stages of your own replica: gradients of different weights. The same stage of the other
    replicas is in the same *column*.
    """
    gradients = case.inputs["gradients"]
    sums = [torch.stack(replica).sum(0) for replica in gradients for _ in replica]
    pairs = zip(each(case, values), sums, strict=True)
    return len(gradients[0]) > 1 and all(along(now, total) for (now, _, _), total in pairs if total.norm())


@says(COUNTED_ON_EVERY_STAGE)
def counts_every_stage(case: Case, values: list) -> bool:
    replicas, stages = len(case.inputs["counts"]), len(case.inputs["gradients"][0])
    return stages not in (1, replicas) and divided_by(case, values, [total_of_all_ranks(case)] * len(values))


def divides_by_the_replicas_too(case: Case, values: list) -> bool:
    """The gradient is too small by a factor of the number of replicas: you divide by that, or take a mean as DDP does,
    and by the count of all replicas as well. Their sum, divided by that count, is already the mean over all tokens.
    """
    replicas, stages = len(case.inputs["counts"]), len(case.inputs["gradients"][0])
    total = replicas * sum(case.inputs["counts"])
    return replicas not in (1, stages) and divided_by(case, values, [total] * len(values))


def counts_the_row(case: Case, values: list) -> bool:
    """You add up the count over the stages of your own replica, which all have the same count. The count must be added
    up over the replicas, like the gradients.
    """
    stages = len(case.inputs["gradients"][0])
    return divided_by(case, values, [max(1, stages * count) for _, _, count in each(case, values)])


def total_of_all_ranks(case: Case) -> int:
    return sum(case.inputs["counts"]) * len(case.inputs["gradients"][0])


def never_divides(case: Case, values: list) -> bool:
    """This is the gradient of the *sum* of the losses. The loss is their mean over the tokens of all replicas: divide
    by the number of those tokens.
    """
    return divided_by(case, values, [1] * len(values))


def divides_by_ranks(case: Case, values: list) -> bool:
    """You divide by the number of ranks, replicas or stages. The mean is over *tokens*: add up the replicas' counts,
    and divide by that.
    """
    replicas, stages = len(case.inputs["counts"]), len(case.inputs["gradients"][0])
    return any(divided_by(case, values, [number] * len(values)) for number in {replicas, stages, len(values)})


def divides_by_its_own_count(case: Case, values: list) -> bool:
    """You add up the gradients over the replicas, but then divide by this replica's count alone. The count must be
    added up over the same ranks as the gradients.
    """
    return divided_by(case, values, [max(1, count) for _, _, count in each(case, values)])


@says(a_mean_of_means("a token", "replica", ", as DDP takes it"))
def means_of_replicas(case: Case, values: list) -> bool:
    gradients, counts = case.inputs["gradients"], case.inputs["counts"]
    if len(set(counts) - {0}) < 2:  # the mean of equal counts is a multiple of the right gradient
        return False
    weighed = [[one / max(1, count) for one in own] for own, count in zip(gradients, counts, strict=True)]
    sums = [torch.stack(column).sum(0) for column in zip(*weighed, strict=True)] * len(counts)
    return all(along(now, mean) for (now, _, _), mean in zip(each(case, values), sums, strict=True))


def sends_more_than_its_own(case: Case, values: list) -> bool:
    """You send more than your own gradient: a table with room for the gradients of other stages, or the same gradient
    several times. In a group for your column, every number is sent once.
    """
    return judge(case, values) is None


def leaves_when_empty(model, count, replicas):
    """A replica that has no tokens returns without calling the all-reduce, and the others wait for it forever."""
    stages = dist.get_world_size() // replicas
    group = own_group([list(range(stage, dist.get_world_size(), stages)) for stage in range(stages)])
    if count:
        total = torch.tensor(count)
        dist.all_reduce(model.weight.grad, group=group)
        dist.all_reduce(total, group=group)
        model.weight.grad /= total


EXERCISE = Exercise(
    **texts("07.2"),
    cases=cases,
    drive=drive,
    private={"gradients": own_gradient, "counts": own_count},
    judge=judge,
    costs=costs,
    symptoms=(
        groups_of_their_own,
        sends_more_than_its_own,
        empty_ones_keep_theirs,
        no_number,
        as_it_was,
        never_divides,
        divides_by_its_own_count,
        counts_every_stage,
        divides_by_the_replicas_too,
        counts_the_row,
        divides_by_ranks,
        means_of_replicas,
        over_everyone,
        along_the_row,
        groups_that_are_no_columns,
        nothing_summed,
    ),
    hanging=leaves_when_empty,
)
