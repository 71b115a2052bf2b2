"""Exercises of lesson 04, accumulation: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Exercise, same_as, seeded

FEATURES = 2


def _examples(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a micro-batch: a line with noise, far enough from 0 for gradients that need clipping."""
    inputs = torch.randn(count, FEATURES, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    return inputs, inputs.sum(dim=1, keepdim=True) * 2 + 5 + noise


def _linear(weight: Tensor) -> nn.Linear:
    model = nn.Linear(FEATURES, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.zero_()
    return model


def _whole(micro_batches: list) -> tuple[Tensor, Tensor]:
    inputs, targets = zip(*micro_batches, strict=True)
    return torch.cat(inputs), torch.cat(targets)


# 04.1 -----------------------------------------------------------------------------------------------------------------


def train_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, sizes: list[int], k: int) -> Case:
        weight = torch.randn(1, FEATURES, generator=generator, dtype=torch.float64)
        micro_batches = [_examples(generator, size) for size in sizes]
        inputs = {"weight": weight, "micro_batches": micro_batches, "k": k}
        return Case(part, 1, inputs, f"micro-batches of {', '.join(map(str, sizes))} examples, k = {k}")

    return [
        case("equal pieces", [2, 2], 2),
        case("equal pieces", [2, 2, 2, 2], 2),
        case("unequal pieces", [1, 4, 3], 3),
        case("the tail", [3, 3, 3, 3, 2], 2),
    ]


def drive_train(answer, weight: Tensor, micro_batches: list, k: int):
    model = _linear(weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = [float(loss) for loss in answer(model, optimizer, micro_batches, k)]
    return {"losses": losses, "weight": model.weight, "bias": model.bias}


def right_train(case: Case) -> list:
    model, k, losses = _linear(case.inputs["weight"]), case.inputs["k"], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for start in range(0, len(case.inputs["micro_batches"]), k):
        inputs, targets = _whole(case.inputs["micro_batches"][start : start + k])
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [{"losses": losses, "weight": model.weight.detach(), "bias": model.bias.detach()}]


def _counted(model, optimizer, micro_batches, k, scale, *, zero_first=True, zero_each=False):
    """The loop that is found in many scripts: pieces are counted, and every k-th makes an update."""
    losses, total = [], 0.0
    for number, (inputs, targets) in enumerate(micro_batches):
        if zero_each or (zero_first and number % k == 0):
            optimizer.zero_grad()
        loss = scale((model(inputs) - targets).square())
        loss.backward()
        total += loss.item()
        if (number + 1) % k == 0:
            optimizer.step()
            losses.append(total)
            total = 0.0
    return losses


def updates_for_every_piece(model, optimizer, micro_batches, k):
    """You update after every micro-batch: that is training with small batches. Let k of them add up their gradients
    before the step.
    """
    losses = []
    for inputs, targets in micro_batches:
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def zeroes_every_time(model, optimizer, micro_batches, k):
    """The gradients are zeroed before every micro-batch, so that only the last one of an update is left of them.
    `backward()` adds to `.grad`: zero once per update.
    """
    return _counted(model, optimizer, micro_batches, k, lambda errors: errors.mean() / k, zero_each=True)


def sums_the_means(model, optimizer, micro_batches, k):
    """You add up the means of k micro-batches: loss and gradient are k times too large, and so is the step. Every
    micro-batch adds its share of one mean.
    """
    return _counted(model, optimizer, micro_batches, k, lambda errors: errors.mean())


def never_zeroes(model, optimizer, micro_batches, k):
    """The second update still has the first one's gradients in it: `backward()` adds to what is there. Zero once per
    update.
    """
    return _counted(model, optimizer, micro_batches, k, lambda errors: errors.mean() / k, zero_first=False)


def divides_by_k(model, optimizer, micro_batches, k):
    """Each micro-batch's mean, divided by k: that is a mean of means. An example in a small micro-batch weighs more
    than one in a large micro-batch. Divide each *sum* by the number of examples of the whole update.
    """
    losses = []
    for start in range(0, len(micro_batches), k):
        optimizer.zero_grad()
        total = 0.0
        for inputs, targets in micro_batches[start : start + k]:
            loss = (model(inputs) - targets).square().mean() / k
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


def divides_by_the_first(model, optimizer, micro_batches, k):
    """You divide by k times the size of the first micro-batch, as if all were as large. Count the examples of the
    update before its first backward pass.
    """
    losses = []
    for start in range(0, len(micro_batches), k):
        optimizer.zero_grad()
        pieces = micro_batches[start : start + k]
        totals = [
            (model(inputs) - targets).square().sum() / (len(pieces) * len(pieces[0][0])) for inputs, targets in pieces
        ]
        sum(totals).backward()
        optimizer.step()
        losses.append(sum(totals).item())
    return losses


def loses_the_tail(model, optimizer, micro_batches, k):
    """The last micro-batches are fewer than k, and no update is made from them: they are lost, or leak into the next
    epoch. They are an update, too, with a count of its own.
    """
    whole = len(micro_batches) // k * k
    losses = []
    for start in range(0, whole, k):
        pieces = micro_batches[start : start + k]
        count = sum(len(inputs) for inputs, _ in pieces)
        losses += _counted(model, optimizer, pieces, k, lambda errors, count=count: errors.sum() / count)
    return losses


TRAIN = Exercise(
    number="04.1",
    title="In pieces, with a tail",
    answer="train_in_pieces",
    level="exercise",
    minutes=15,
    parts={"equal pieces": 1, "unequal pieces": 2, "the tail": 1},
    read="2 · The same gradient",
    hints=(
        "What must happen once per update, and what once per micro-batch? Write the two loops first.",
        "The mean over an update is a sum divided by a count. The sum can be added up piece by piece; when do you know "
        "the count?",
        "`micro_batches[start : start + k]` is shorter than k at the end, and that is all the care a tail needs.",
    ),
    cases=train_cases,
    drive=drive_train,
    judge=same_as(right_train),
    mistakes=(
        updates_for_every_piece,
        zeroes_every_time,
        sums_the_means,
        never_zeroes,
        divides_by_k,
        divides_by_the_first,
        loses_the_tail,
    ),
)

# 04.2 -----------------------------------------------------------------------------------------------------------------


def clip_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, sizes: list[list[int]], limit: float) -> Case:
        weight = -torch.rand(1, FEATURES, generator=generator, dtype=torch.float64)
        micro_batches = [[_examples(generator, size) for size in rank] for rank in sizes]
        inputs = {"weight": weight, "micro_batches": micro_batches, "limit": limit}
        return Case(part, len(sizes), inputs, f"micro-batches of {sizes} examples, clipped to {limit}")

    return [
        case("the gradient of all", [[2, 2], [2, 2]], 1000.0),
        case("the norm of all", [[2, 2], [2, 2]], 0.5),
        case("the norm of all", [[4, 1], [2, 3], [1, 1]], 0.25),
    ]


def drive_clip(answer, weight: Tensor, micro_batches: list, limit: float):
    model = _linear(weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    count = sum(len(inputs) for rank in micro_batches for inputs, _ in rank)
    norm = answer(model, optimizer, micro_batches[dist.get_rank()], count, limit)
    return {"norm": float(norm), "weight": model.weight, "bias": model.bias}


def right_clip(case: Case) -> list:
    model = _linear(case.inputs["weight"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inputs, targets = _whole([piece for rank in case.inputs["micro_batches"] for piece in rank])
    (model(inputs) - targets).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), case.inputs["limit"])
    optimizer.step()
    return [{"norm": norm.item(), "weight": model.weight.detach(), "bias": model.bias.detach()}] * case.ranks


def _accumulate(model, micro_batches, count, after_each=lambda: None):
    for inputs, targets in micro_batches:
        ((model(inputs) - targets).square().sum() / count).backward()
        after_each()


def _sum_over_ranks(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def clips_every_piece(model, optimizer, micro_batches, count, limit):
    """You clip after every micro-batch: the later ones are added to what was already cut down, and weigh more. The
    limit is meant for the gradient of the whole batch.
    """

    def clip():
        nn.utils.clip_grad_norm_(model.parameters(), limit)

    _accumulate(model, micro_batches, count, clip)
    _sum_over_ranks(model)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    optimizer.step()
    return norm


def clips_its_own(model, optimizer, micro_batches, count, limit):
    """Each rank clips its own gradient, and then they are added up: ranks are cut down by different factors, and the
    sum may be longer than the limit. First the sum over all ranks, then the norm.
    """
    _accumulate(model, micro_batches, count)
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    _sum_over_ranks(model)
    optimizer.step()
    return norm


def averages_once_more(model, optimizer, micro_batches, count, limit):
    """The gradient is too small by the number of ranks: `count` has the examples of all ranks already, so the ranks'
    parts are to be added up, not averaged.
    """
    _accumulate(model, micro_batches, count)
    _sum_over_ranks(model)
    for parameter in model.parameters():
        parameter.grad /= dist.get_world_size()
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    return norm


def keeps_to_itself(model, optimizer, micro_batches, count, limit):
    """Every rank updates with its own gradient: nothing was sent, and the replicas drift apart. Add the gradients up
    over the ranks before you clip.
    """
    _accumulate(model, micro_batches, count)
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    return norm


def always_scales(model, optimizer, micro_batches, count, limit):
    """A gradient shorter than the limit is stretched to it. Clipping only ever shortens: the factor is at most 1."""
    _accumulate(model, micro_batches, count)
    _sum_over_ranks(model)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    for parameter in model.parameters():
        parameter.grad *= limit / norm
    optimizer.step()
    return norm


def clips_each_parameter(model, optimizer, micro_batches, count, limit):
    """Each parameter is clipped by its own norm, which turns the gradient into another direction. The norm is that of
    all parameters together, and one factor shortens them all.
    """
    _accumulate(model, micro_batches, count)
    _sum_over_ranks(model)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    for parameter in model.parameters():
        nn.utils.clip_grad_norm_([parameter], limit)
    optimizer.step()
    return norm


def clips_too_late(model, optimizer, micro_batches, count, limit):
    """The step is made with the gradient as it was: you clip after it, when nobody looks any more. The order is sum,
    clip, step.
    """
    _accumulate(model, micro_batches, count)
    _sum_over_ranks(model)
    optimizer.step()
    return nn.utils.clip_grad_norm_(model.parameters(), limit)


CLIP = Exercise(
    number="04.2",
    title="Clip in the right place",
    answer="clipped_update",
    level="exercise",
    minutes=15,
    parts={"the gradient of all": 1, "the norm of all": 2},
    read="5 · Clipping, the scheduler and the tail",
    hints=(
        "Put these in order: clip, step, backward of every micro-batch, all-reduce. Which of them happen once?",
        "`count` is the same on all ranks. If every micro-batch's sum is divided by it, what has to be done with the "
        "ranks' gradients: a sum or a mean?",
        "`torch.nn.utils.clip_grad_norm_(parameters, limit)` returns the norm that it found.",
    ),
    cases=clip_cases,
    drive=drive_clip,
    judge=same_as(right_clip, tolerance=1e-6),  # clip_grad_norm_ adds 1e-6 to the norm; an answer by hand need not
    mistakes=(
        clips_every_piece,
        clips_its_own,
        averages_once_more,
        keeps_to_itself,
        always_scales,
        clips_each_parameter,
        clips_too_late,
    ),
)

# 04.3 -----------------------------------------------------------------------------------------------------------------


def hook_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, ranks: int, k: int, updates: int) -> Case:
        passes = torch.randn(ranks, updates, k, FEATURES, generator=generator, dtype=torch.float64)
        says = f"k = {k}, {updates} update{'s' if updates > 1 else ''}, a weight and a bias"
        return Case(part, ranks, {"passes": passes}, says)

    return [
        case("one micro-batch", 2, 1, 1),
        case("several micro-batches", 2, 3, 1),
        case("several updates", 3, 2, 2),
    ]


def drive_hook(answer, passes: Tensor):
    """The gradients after every backward pass: of the weight the inputs, of the bias their first number's square."""
    model = _linear(torch.ones(1, FEATURES))
    answer(model, passes.shape[2])
    seen = {}
    for update in passes[dist.get_rank()]:
        for inputs in update:
            (model.weight @ inputs + model.bias * inputs[0].square()).sum().backward()
            number = len(seen) // 2 + 1
            seen[f"the weight's gradient after pass {number}"] = model.weight.grad[0].clone()
            seen[f"the bias's gradient after pass {number}"] = model.bias.grad.clone()
        model.zero_grad()
    return seen


def right_hook(case: Case) -> list:
    passes = case.inputs["passes"]
    sums = {"weight": passes.cumsum(dim=2), "bias": passes[..., :1].square().cumsum(dim=2)}
    for accumulated in sums.values():
        accumulated[:, :, -1] = accumulated[:, :, -1].mean(dim=0)
    flat = {name: accumulated.flatten(1, 2) for name, accumulated in sums.items()}
    return [
        {
            f"the {name}'s gradient after pass {number + 1}": flat[name][rank, number]
            for number in range(flat["weight"].shape[1])
            for name in flat
        }
        for rank in range(case.ranks)
    ]


def _mean_over_ranks(tensor):
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


def last_gradient_only(model, k):
    """A tensor hook sees *this backward pass's* gradient, not what has been accumulated: with one micro-batch it is
    right, and its test passes. What the earlier ones left in `.grad` is never averaged. There is a hook that runs
    *after* the gradient has been added.
    """
    for parameter in model.parameters():
        calls = []

        def hook(gradient, calls=calls):
            calls.append(1)
            if len(calls) % k:
                return gradient
            gradient = gradient.clone()
            _mean_over_ranks(gradient)
            return gradient

        parameter.register_hook(hook)


def _after_accumulation(model, hook):
    for place, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda tensor, place=place: hook(tensor, place))


def parameter_instead(model, k):
    """The hook is given the *parameter*, and you average that. All ranks' parameters are equal: it is a costly way to
    do nothing, and every rank keeps its own gradient. It is `parameter.grad` that must be averaged.
    """
    calls = [0, 0]

    def hook(parameter, place):
        calls[place] += 1
        if calls[place] % k == 0:
            _mean_over_ranks(parameter.data)

    _after_accumulation(model, hook)


def sends_every_time(model, k):
    """Every backward pass sends: k messages where one would do. What is in `.grad` at the end is right, but before
    that it must be this rank's own sum. Let only the k-th pass send.
    """
    _after_accumulation(model, lambda parameter, place: _mean_over_ranks(parameter.grad))


def adds_up(model, k):
    """This is the sum over the ranks. The exercise asks for their mean: divide by the number of ranks."""
    calls = [0, 0]

    def hook(parameter, place):
        calls[place] += 1
        if calls[place] % k == 0:
            dist.all_reduce(parameter.grad)

    _after_accumulation(model, hook)


def counts_hooks_not_passes(model, k):
    """You count calls of the hook, and a backward pass calls it once for *each* parameter: the k-th call comes in the
    middle of some pass. Count the passes, or the calls of each parameter.
    """
    calls = [0]

    def hook(parameter, place):
        calls[0] += 1
        if calls[0] % k == 0:
            _mean_over_ranks(parameter.grad)

    _after_accumulation(model, hook)


def works_once(model, k):
    """The first update is right. Then your count goes on from k, and no later pass is the k-th again: start over after
    each update.
    """
    calls = [0, 0]

    def hook(parameter, place):
        calls[place] += 1
        if calls[place] == k:
            _mean_over_ranks(parameter.grad)

    _after_accumulation(model, hook)


HOOK = Exercise(
    number="04.3",
    title="Hooks that are right under accumulation",
    answer="average_with_hooks",
    level="build",
    minutes=30,
    parts={"one micro-batch": 1, "several micro-batches": 3, "several updates": 1},
    read="4 · Broken on purpose: two published hooks",
    hints=(
        "`register_hook` gives you the gradient of one backward pass, before it is added to `.grad`. Which hook comes "
        "after that?",
        "`parameter.register_post_accumulate_grad_hook(hook)` calls `hook(parameter)` when `parameter.grad` has this "
        "pass in it.",
        "How does a hook know that this is the k-th pass of an update? Each parameter's hook is called once per pass.",
        "A function defined in a loop sees the loop's *last* values. Make the hook in a function of its own, with a "
        "count of its own.",
    ),
    cases=hook_cases,
    drive=drive_hook,
    judge=same_as(right_hook),
    mistakes=(
        last_gradient_only,
        parameter_instead,
        sends_every_time,
        adds_up,
        counts_hooks_not_passes,
        works_once,
    ),
)

EXERCISES = (TRAIN, CLIP, HOOK)
