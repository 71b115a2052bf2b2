"""04.3 Hooks that are right under accumulation: the check, and the wrong answers it recognizes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Cost, Exercise, differs, draw, seeded
from course_lib.checks.private import by_rank
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_04 import FEATURES, linear
from course_lib.lessons.symptoms import observed, over_budget


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, ranks: int, k: int, updates: int, keep: bool = False, layers: int = 1) -> Case:
        passes = torch.randn(ranks, updates, k, FEATURES, generator=generator, dtype=torch.float64)
        zeroed = "filled with zeros" if keep else "set to None"
        model = "a weight and a bias" if layers == 1 else f"{layers} layers of a weight and a bias"
        says = f"k = {k}, {updates} update{'s' if updates > 1 else ''}, {model}, gradients {zeroed}"
        return Case(part, ranks, {"passes": passes, "keep": keep, "layers": layers}, says)

    drawn = draw(lambda chance: (chance.choice([2, 3]), chance.randint(1, 4), chance.randint(2, 4)), 6, seed)
    return [
        case("one micro-batch", 2, 1, 1),
        case("several micro-batches", 2, 3, 1),
        case("several micro-batches", 3, 2, 1),
        case("several micro-batches", 2, 3, 1, layers=2),  # parameters of the same name, as most models have
        case("several micro-batches", 2, 5, 1, layers=3),
        case("several updates", 3, 2, 2),
        case("several updates", 2, 3, 2, keep=True),
        *(
            case("several updates", *numbers, keep=bool(place % 2), layers=1 + place % 3 // 2)
            for place, numbers in enumerate(drawn)
        ),
    ]


def drive(answer, passes: Tensor, keep: bool, layers: int):
    """Return the gradients after every backward pass. A weight's gradient is the inputs and a bias's the square of the
    first input, both multiplied by the layer's number, counted from 1.
    """
    from course_lib.core.metering import meter

    parts = [linear(torch.ones(1, FEATURES)) for _ in range(layers)]
    model = parts[0] if layers == 1 else nn.ModuleList(parts)
    names = [name for name, _ in model.named_parameters()]
    seen, sent = {name: [] for name in names}, []
    answer(model, passes.shape[2])
    for update in passes[dist.get_rank()]:
        for inputs in update:
            outputs = [part.weight @ inputs + part.bias * inputs[0].square() for part in parts]
            with meter() as spent:
                torch.stack([number * output.sum() for number, output in enumerate(outputs, 1)]).sum().backward()
            sent.append([sum(spent.calls.values()) + spent.messages, sum(spent.payload.values())])
            for name, parameter in model.named_parameters():
                gradient = parameter.grad  # None if a hook has removed it
                seen[name].append(None if gradient is None else gradient.detach().flatten().clone())
        model.zero_grad(set_to_none=not keep)
    return {**seen, "sent": sent, "weights": [parameter.detach().flatten() for parameter in model.parameters()]}


def gradients(case: Case) -> dict[str, Tensor]:
    """Return the gradients of every single pass, of shape (ranks, updates, passes, numbers)."""
    passes, layers = case.inputs["passes"], case.inputs["layers"]
    prefixes = [""] if layers == 1 else [f"{place}." for place in range(layers)]
    return {
        f"{prefix}{name}": number * single
        for number, prefix in enumerate(prefixes, 1)
        for name, single in (("weight", passes), ("bias", passes[..., :1].square()))
    }


def expected(case: Case, sent: Callable[[Tensor], Tensor] | None = None) -> dict[str, Tensor]:
    """Return `.grad` after every pass, of shape (ranks, passes of all updates, numbers).

    `sent` computes the gradient after the last pass of an update; the default is the mean over the ranks.
    """
    found = {}
    for name, single in gradients(case).items():
        accumulated = single.cumsum(dim=2)
        accumulated[:, :, -1] = sent(single) if sent else accumulated[:, :, -1].mean(dim=0)
        found[name] = accumulated.flatten(1, 2)
    return found


def judge(case: Case, values: list) -> str | None:
    right, k = expected(case), case.inputs["passes"].shape[2]
    for rank, value in enumerate(values):
        for number in range(len(value["sent"])):
            for name in right:
                label = f"rank {rank}: the {name}'s gradient after pass {number + 1}"
                difference = differs(value[name][number], right[name][rank, number], label)
                if difference:
                    return (
                        f"{difference} ({'the mean over the ranks' if (number + 1) % k == 0 else 'its own sum so far'})"
                    )
        if differs(value["weights"], [torch.ones(FEATURES), torch.zeros(1)] * case.inputs["layers"]):
            return f"rank {rank}: the weights have changed"
    return None


def costs(case: Case, values: list) -> list[Cost]:
    k, updates = case.inputs["passes"].shape[2], case.inputs["passes"].shape[1]
    kth = [place % k == k - 1 for place in range(k * updates)]
    sent = [list(zip(value["sent"], kth, strict=True)) for value in values]
    before = max(sum(calls for (calls, _), last in rank if not last) for rank in sent)
    payload = max(sum(numbers for (_, numbers), last in rank if last) for rank in sent)
    once = 8 * (FEATURES + 1) * case.inputs["layers"]
    return [
        Cost("messages in passes before the k-th", before, 0),
        Cost("bytes that a rank sends in the k-th passes", payload, once * updates, at_least=8),
    ]


def _is_like(case: Case, values: list, wrong: dict[str, Tensor]) -> bool:
    found = [{name: torch.stack(value[name]) for name in wrong} for value in values]
    return all(differs(own[name], wrong[name][rank]) is None for rank, own in enumerate(found) for name in wrong)


def _last_pass_is(case: Case, values: list, sent: Callable[[Tensor], Tensor]) -> bool:
    return bool(judge(case, values)) and _is_like(case, values, expected(case, sent))


def has_averaged_the_last_pass(case: Case, values: list) -> bool:
    """A tensor hook sees *this backward pass's* gradient, not what has been accumulated: with one micro-batch that is
    right, and a test with one passes. What the earlier passes left in `.grad` is never averaged. Use the hook that runs
    *after* the gradient has been added.
    """
    return _last_pass_is(case, values, lambda single: single[:, :, :-1].sum(dim=2) + single[:, :, -1].mean(dim=0))


@observed
def has_sent_nothing(case: Case, values: list) -> bool:
    """Nothing is sent in any backward pass. Your function is called once, before training, when there are no gradients
    yet: register a hook on each parameter, and let the hook send.
    """
    return not any(calls for value in values for calls, _ in value["sent"])


def has_kept_its_own(case: Case, values: list) -> bool:
    """Every rank keeps its own sum, though something is sent: you averaged a copy, or something other than
    `parameter.grad`. Change `.grad` in place, or replace it.
    """
    return _last_pass_is(case, values, lambda single: single.sum(dim=2))


def has_left_out_a_parameter(case: Case, values: list) -> bool:
    """Some gradients are still the rank's own sums, and others are not: not every parameter has a hook that works on
    it. Give each parameter one. (A hook defined in a loop sees the loop's *last* values.)
    """
    own = expected(case, lambda single: single.sum(dim=2))
    kept = [differs([torch.stack(value[name]) for value in values], list(own[name])) is None for name in own]
    return any(kept) and not all(kept)


def has_added_up(case: Case, values: list) -> bool:
    """This is the sum over the ranks. The exercise asks for their mean: divide by the number of ranks."""
    return _last_pass_is(case, values, lambda single: single.sum(dim=2).sum(dim=0))


def has_divided_by_k(case: Case, values: list) -> bool:
    """You divide by the number of passes, too. What was accumulated is a sum over the passes, and stays one: the
    exercise asks for a mean only over the ranks.
    """
    return _last_pass_is(case, values, lambda single: single.mean(dim=2).mean(dim=0))


@observed
def has_sent_every_time(case: Case, values: list) -> bool:
    """Every backward pass sends: k messages where one would do. Before the k-th pass, `.grad` must be this rank's own
    sum, and nothing is sent.
    """
    k = case.inputs["passes"].shape[2]
    return k > 1 and all(calls for value in values for calls, _ in value["sent"])


@observed
def has_sent_in_the_first_pass(case: Case, values: list) -> bool:
    """The *first* pass of every k sends instead of the last: what is accumulated afterwards is never averaged. Count a
    pass before you check whether it is the k-th.
    """
    k = case.inputs["passes"].shape[2]
    first = [place % k == 0 for place in range(len(values[0]["sent"]))]
    return k > 1 and all([bool(calls) for calls, _ in value["sent"]] == first for value in values)


def has_worked_once(case: Case, values: list) -> bool | None:
    """The first update is right. Then your count continues from k, and no later pass is the k-th again: reset it after
    each update.
    """
    k, updates = case.inputs["passes"].shape[2], case.inputs["passes"].shape[1]
    once = [place == k - 1 for place in range(k * updates)]
    return all([bool(calls) for calls, _ in value["sent"]] == once for value in values) if updates > 1 else None


def has_counted_hooks(case: Case, values: list) -> bool | None:
    """You count calls of the hook, but a backward pass calls it once for *each* parameter: the k-th call comes in the
    middle of some pass. Count the passes, or the calls per parameter.
    """
    return _counts_so_often_in_a_pass(case, values, 2 * case.inputs["layers"])


def has_shared_a_count(case: Case, values: list) -> bool | None:
    """Several parameters share a count, such as all that are called `weight`: a pass counts once for each of them, so
    some are sent too early. Keep a separate count for each parameter: a name is unique only together with the names of
    its modules, as in `named_parameters()`.
    """
    layers = case.inputs["layers"]
    return _counts_so_often_in_a_pass(case, values, layers) if layers > 1 else None


def _counts_so_often_in_a_pass(case: Case, values: list, calls: int) -> bool | None:
    """Return whether the passes that send are those in which a count of `calls` per pass reaches a multiple of k."""
    k = case.inputs["passes"].shape[2]
    sends = [
        any(call % k == 0 for call in range(p * calls + 1, (p + 1) * calls + 1)) for p in range(len(values[0]["sent"]))
    ]
    return all([bool(sent) for sent, _ in value["sent"]] == sends for value in values) if k > 1 else None


def has_sent_more_than_once(case: Case, values: list) -> bool:
    """The gradients are right, but more is sent in a k-th pass than each gradient once. A hook is called for every
    parameter: let it send that parameter's gradient, or let only the pass's last call send all of them.
    """
    return over_budget(judge, costs, case, values, 1)


EXERCISE = Exercise(
    **texts("04.3"),
    cases=cases,
    drive=drive,
    private={"passes": by_rank},
    judge=judge,
    costs=costs,
    symptoms=(
        has_averaged_the_last_pass,
        has_sent_nothing,
        has_kept_its_own,
        has_left_out_a_parameter,
        has_added_up,
        has_divided_by_k,
        has_counted_hooks,
        has_shared_a_count,
        has_sent_more_than_once,
        has_sent_every_time,
        has_sent_in_the_first_pass,
        has_worked_once,
    ),
)
