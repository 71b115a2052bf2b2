"""04.1 In pieces, with a tail: the check, and the wrong answers it recognizes."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Cost, Exercise, differs, draw, same_as, seeded
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_04 import FEATURES, examples
from course_lib.lessons.symptoms import observed, over_budget

HIDDEN = 32  # wide enough that its outputs are most of what autograd saves
HELD = 1.5  # the budget, in forward passes of the largest micro-batch: styles differ, but two graphs need 2
DRAWN = 8


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, sizes: list[int], k: int) -> Case:
        shapes = (HIDDEN, FEATURES), (1, HIDDEN)
        weights = [torch.randn(shape, generator=generator, dtype=torch.float64) / 2 for shape in shapes]
        micro_batches = [examples(generator, size) for size in sizes]
        inputs = {"weights": weights, "micro_batches": micro_batches, "k": k}
        return Case(part, 1, inputs, f"micro-batches of {', '.join(map(str, sizes))} examples, k = {k}")

    drawn = draw(sizes_from, DRAWN, seed)
    return [
        case("equal pieces", [2, 2], 2),
        case("equal pieces", [2, 2, 2, 2], 2),
        case("equal pieces", [3, 3, 3], 1),
        case("unequal pieces", [1, 4, 3], 3),
        case("unequal pieces", [1, 4, 3, 5, 1, 1], 3),
        case("the tail", [3, 3, 3, 3, 2], 2),
        case("the tail", [3, 1], 4),
        *(case("the tail", sizes, k) for sizes, k in drawn),
    ]


def sizes_from(chance: random.Random) -> tuple[list[int], int]:
    return [chance.randint(1, 5) for _ in range(chance.randint(1, 7))], chance.randint(1, 5)


def network(weights: list[Tensor]) -> nn.Sequential:
    first, second = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, 1)
    model = nn.Sequential(first, nn.Tanh(), second).double()
    with torch.no_grad():
        for layer, weight in zip((first, second), weights, strict=True):
            layer.weight.copy_(weight)
            layer.bias.zero_()
    return model


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)


def drive(answer, weights: list[Tensor], micro_batches: list, k: int):
    from course_lib.core.metering import meter

    model = network(weights)
    with meter() as spent:
        losses = [torch.as_tensor(loss).detach().item() for loss in answer(model, sgd(model), micro_batches, k)]
    sizes = [shape[0] for shape in spent.forwards.get("Tanh", [])]
    return {
        "losses": losses,
        "parameters": [parameter.detach() for parameter in model.parameters()],
        "forwards": len(sizes),
        "largest forward": max(sizes, default=0),
        "backwards": spent.backwards,
        "held": spent.saved_bytes,
    }


def expected(case: Case) -> list:
    return [trained(case, lambda sizes: [size / sum(sizes) for size in sizes])]


def trained(
    case: Case,
    share: Callable[[list[int]], list[float]],
    zero_each: bool = False,
    zero: bool = True,
    tail: bool = True,
    once_more: bool = False,
) -> dict:
    """Return losses and parameters if `share` weights the mean of each piece in its update.

    Each keyword introduces one mistake.
    """
    model, losses, pieces, k = network(case.inputs["weights"]), [], case.inputs["micro_batches"], case.inputs["k"]
    optimizer = sgd(model)
    updates = [pieces[start : start + k] for start in range(0, len(pieces), k)]
    for update in updates:
        if len(update) < k and not tail:
            continue
        if zero:
            optimizer.zero_grad()
        total = 0.0
        for (inputs, targets), part in zip(update, share([len(inputs) for inputs, _ in update]), strict=True):
            if zero_each:
                optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean() * part
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    if once_more:
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()
    return {"losses": losses, "parameters": [parameter.detach() for parameter in model.parameters()]}


def judge(case: Case, values: list) -> str | None:
    (value,) = values
    return same_as(expected)(case, [{name: value[name] for name in ("losses", "parameters")}])


def costs(case: Case, values: list) -> list[Cost]:
    (value,), pieces = values, case.inputs["micro_batches"]
    largest = max(len(inputs) for inputs, _ in pieces)
    return [
        Cost("examples in one forward pass", value["largest forward"], largest),
        Cost("forward passes", value["forwards"], len(pieces)),
        Cost("backward passes", value["backwards"], len(pieces)),
        Cost("bytes that autograd held at once", value["held"], HELD * bytes_of(largest) + 8 * HIDDEN),
    ]


def bytes_of(examples: int) -> int:
    """Return the bytes that autograd saves for this many examples: inputs, hidden units and errors.

    The transposed weights of the output layer, which it saves once, are not included.
    """
    return 8 * examples * (FEATURES + HIDDEN + 1)


def _is_like(case: Case, values: list, *arguments, **options) -> bool:
    """Return whether an answer's parameters, or its losses, are wrong and equal to those of `trained(...)`."""
    wrong, right = trained(case, *arguments, **options), expected(case)[0]
    names = [name for name in wrong if differs(values[0][name], right[name])]
    return any(differs(wrong[name], right[name]) and not differs(values[0][name], wrong[name]) for name in names)


def _mean_of_means(sizes: list[int]) -> list[float]:
    return [1 / len(sizes)] * len(sizes)


def has_updated_for_every_piece(case: Case, values: list) -> bool | None:
    """You update after every micro-batch: that is training with small batches. Add up the gradients of k of them before
    the step.
    """
    pieces, k = case.inputs["micro_batches"], case.inputs["k"]
    return None if len(pieces) == k else k > 1 and len(pieces) > 1 and len(values[0]["losses"]) == len(pieces)


def has_made_k_updates(case: Case, values: list) -> bool | None:
    """You make k updates, or as many as there are micro-batches if that is less. `k` is the number of micro-batches
    in one update.
    """
    pieces, k = case.inputs["micro_batches"], case.inputs["k"]
    return None if len(pieces) == k else len(values[0]["losses"]) == min(k, len(pieces)) != -(-len(pieces) // k)


def has_lost_the_tail(case: Case, values: list) -> bool:
    """Fewer than k micro-batches are left at the end, and no update is made from them: they are lost, or leak into the
    next epoch. They form an update, too, with its own count.
    """
    full = len(case.inputs["micro_batches"]) // case.inputs["k"]
    has_tail = full * case.inputs["k"] < len(case.inputs["micro_batches"])
    right = expected(case)[0]["losses"][:full]
    return has_tail and differs(values[0]["losses"], right) is None


def has_joined_the_tail(case: Case, values: list) -> bool | None:
    """There are fewer updates than there should be: what is left at the end, fewer than k micro-batches, is a separate
    update, and belongs to no other.
    """
    pieces, k, made = case.inputs["micro_batches"], case.inputs["k"], len(values[0]["losses"])
    right = -(-len(pieces) // k)
    if len(pieces) % k == 0:
        return None if made == right else False
    return 0 < made < right


@observed
def has_not_moved(case: Case, values: list) -> bool:
    """The weights haven't changed: no step was made, or the gradients were zeroed before it."""
    before = [parameter.detach() for parameter in network(case.inputs["weights"]).parameters()]
    return differs(values[0]["parameters"], before) is None


@observed
def has_returned_other_losses(case: Case, values: list) -> bool:
    """The weights are right here, but the losses that you return are not. Return one number for each update, the tail's
    included: the sum of its micro-batches' shares.
    """
    return differs(values[0]["parameters"], expected(case)[0]["parameters"]) is None and judge(case, values) is not None


def has_run_more_passes(case: Case, values: list) -> bool:
    """You run more passes than there are micro-batches: in smaller pieces than they come in, or some of them twice. A
    micro-batch is as large as fits, and devices are most efficient with large ones.
    """
    return judge(case, values) is None and max(values[0]["forwards"], values[0]["backwards"]) > len(
        case.inputs["micro_batches"]
    )


def has_divided_by_k(case: Case, values: list) -> bool:
    """This is a mean of means: an example in a small micro-batch weighs more than one in a large one. (If you divide by
    k, those in a shorter tail also weigh too little.) Divide each *sum* by the number of examples of the whole update.
    """
    k = case.inputs["k"]
    return _is_like(case, values, _mean_of_means) or _is_like(case, values, lambda sizes: [1 / k] * len(sizes))


def has_summed_the_means(case: Case, values: list) -> bool:
    """You add up the means of k micro-batches: loss and gradient are k times too large, and so is the step. Every
    micro-batch adds its share of one mean.
    """
    return _is_like(case, values, lambda sizes: [1.0] * len(sizes))


def has_never_divided(case: Case, values: list) -> bool:
    """You add up squared errors and never divide, so the step grows with the batch. The loss is their mean: divide each
    sum by the number of examples of the whole update.
    """
    return _is_like(case, values, lambda sizes: [float(size) for size in sizes])


def has_taken_one_size_for_all(case: Case, values: list) -> bool:
    """You divide by the number of micro-batches times the size of *one* of them, as if all were the same size. Count
    the examples of the update before its first backward pass.
    """

    def like(size_of: Callable[[list[int]], int], count: Callable[[list[int]], int]) -> bool:
        return _is_like(case, values, lambda sizes: [size / (count(sizes) * size_of(sizes)) for size in sizes])

    sizes_of = (lambda sizes: sizes[0], lambda sizes: sizes[-1], max)
    return any(like(size_of, count) for size_of in sizes_of for count in (len, lambda sizes: case.inputs["k"]))


def has_counted_one_update(case: Case, values: list) -> bool:
    """You divide by the same number of examples in every update: those of the first one, of the largest, or of all of
    them together. They differ, and so does the tail. Count the examples of each update.
    """
    pieces, k = case.inputs["micro_batches"], case.inputs["k"]
    counts = [sum(len(inputs) for inputs, _ in pieces[start : start + k]) for start in range(0, len(pieces), k)]
    return any(
        _is_like(case, values, lambda sizes, count=count: [size / count for size in sizes])
        for count in (counts[0], max(counts), sum(counts))
    )


def has_zeroed_every_time(case: Case, values: list) -> bool:
    """The gradients are zeroed before every micro-batch, so only the last one of an update counts. `backward()` adds to
    `.grad`: zero once per update.
    """
    shares = (_mean_of_means, lambda sizes: [size / sum(sizes) for size in sizes])
    return any(_is_like(case, values, share, zero_each=True) for share in shares)


def has_never_zeroed(case: Case, values: list) -> bool:
    """The second update still has the first one's gradients in it: `backward()` adds to `.grad`. Zero once per
    update.
    """
    shares = (_mean_of_means, lambda sizes: [size / sum(sizes) for size in sizes])
    return any(_is_like(case, values, share, zero=False) for share in shares)


def has_stepped_once_more(case: Case, values: list) -> bool:
    """There is one step too many, after the last update, with gradients of zero: momentum still moves the weights. Step
    for the tail only if there is one.
    """
    return _is_like(case, values, lambda sizes: [size / sum(sizes) for size in sizes], once_more=True)


def has_joined_the_pieces(case: Case, values: list) -> bool:
    """You join micro-batches and run them as one. The numbers are right, but the memory is that of the whole batch,
    which does not fit: that is why it came in pieces. Run a separate forward and backward pass for each micro-batch.
    """
    return values[0]["largest forward"] > max(len(inputs) for inputs, _ in case.inputs["micro_batches"])


def has_held_several_graphs(case: Case, values: list) -> bool:
    """A backward pass frees what its forward pass saved. You run several forward passes before the first backward pass,
    or retain the graph, so the activations of all of them are in memory at once. Call `backward()` on each
    micro-batch's share right after its forward pass: the gradients add up in `.grad`.
    """
    return over_budget(judge, costs, case, values, -1)


EXERCISE = Exercise(
    **texts("04.1"),
    cases=cases,
    drive=drive,
    modules=("torch._dynamo",),
    judge=judge,
    costs=costs,
    symptoms=(
        has_returned_other_losses,
        has_updated_for_every_piece,
        has_lost_the_tail,
        has_joined_the_tail,
        has_made_k_updates,
        has_not_moved,
        has_divided_by_k,
        has_summed_the_means,
        has_never_divided,
        has_taken_one_size_for_all,
        has_counted_one_update,
        has_zeroed_every_time,
        has_never_zeroed,
        has_stepped_once_more,
        has_joined_the_pieces,
        has_held_several_graphs,
        has_run_more_passes,
    ),
)
