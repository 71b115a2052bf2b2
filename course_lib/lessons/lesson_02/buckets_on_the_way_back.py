"""02.4 Buckets on the way back: the check, and the wrong answers it recognizes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Cost, Exercise, differs, seeded
from course_lib.checks.private import by_rank_inside
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_02 import nested
from course_lib.lessons.symptoms import DIVIDED_TWICE, THE_SUM, ahead_of_waits, observed, says


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(
        part: str,
        ranks: int,
        widths: list[int],
        limit: int,
        updates: int = 1,
        spare: int | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Case:
        shapes = {}
        for layer, (width, outputs) in enumerate([*pairwise(widths), (0, 0)]):
            if layer == spare:
                shapes |= {"spare.weight": [widths[-1], widths[-1]], "spare.bias": [widths[-1]]}
            if outputs:
                shapes |= {f"{layer}.weight": [outputs, width], f"{layer}.bias": [outputs]}
        weights = {name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in shapes.items()}
        inputs = torch.randn(updates, ranks, 3, widths[0], generator=generator, dtype=dtype)
        total = sum(weight.nbytes for weight in weights.values())
        says = f"{len(weights)} parameters of {total} bytes in all, buckets of {limit} bytes"
        says += f", {updates} updates" * (updates > 1) + ", two parameters without gradients" * (spare is not None)
        says += ", in float32" * (dtype == torch.float32)
        return Case(part, ranks, {"weights": weights, "inputs": inputs, "limit": limit}, says)

    return [
        case("the mean", 2, [2, 2, 2], 64),
        case("the mean", 3, [3, 4, 2, 4], 128),
        case("the mean", 2, [2, 2, 2, 2, 2], 32),
        case("more than one update", 2, [3, 3, 3, 3], 96, updates=2),
        case("more than one update", 2, [2] * 8, 64, updates=3, spare=7),
        case("more than one update", 2, [2] * 8, 96, updates=2, spare=7),
        case("more than one update", 2, [2] * 8, 112, updates=2, spare=3),
        case("more than one update", 3, [2] * 6, 80, updates=2, spare=0),
        case("buckets", 2, [4, 4, 4, 4, 4, 4], 320),
        case("buckets", 2, [1, 5, 2, 6, 1, 3, 3], 128),
        case("buckets", 3, [2] * 12, 96),
        case("buckets", 2, [2] * 12, 240),
        case("buckets", 2, [4, 4, 4, 4, 4, 4, 4, 4], 160, dtype=torch.float32),
    ]


def drive(answer, weights: dict[str, Tensor], inputs: Tensor, limit: int):
    """Return, for each update, the gradients, the events in order (gradients ready, collectives started, waits), and
    how many of the answer's hooks are still registered.
    """
    from course_lib.launcher.hangs import call_log

    log, events = call_log.of_this_process(), []
    assert log is not None  # every rank has one
    seen = {call.key for call in log.calls()}

    def note(what):
        for call in log.calls():
            if call.key not in seen:
                seen.add(call.key)
                if call.op == "barrier":  # it carries no data
                    continue
                events.append([call.op, call.numbers * getattr(getattr(torch, call.dtype, None), "itemsize", 1)])
        events.append([what, 0])

    model = nested(weights)
    parameters = {name: model.get_parameter(name) for name in weights}
    for name, parameter in parameters.items():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: note(f"ready {name}"))

    class Noted:
        """A descriptor that records lookups of `wait`. A wrapper would add our frame to a hang's stack trace."""

        def __init__(self, wait):
            self.wait = wait

        def __get__(self, work, kind=None):
            if work is not None:
                note("wait")
            return self.wait.__get__(work, kind)

    handles, updates = [], []

    def keeping_handles(register):
        def registered(*given, **named):
            handles.append(register(*given, **named))
            return handles[-1]

        return registered

    waits = {kind: kind.wait for kind in (dist.Work, torch.futures.Future)}
    registers = {name: getattr(Tensor, name) for name in ("register_hook", "register_post_accumulate_grad_hook")}
    for kind, wait in waits.items():
        setattr(kind, "wait", Noted(wait))  # noqa: B010
    for name, register in registers.items():
        setattr(Tensor, name, keeping_handles(register))
    try:
        for mine in inputs[:, dist.get_rank()]:
            model.zero_grad()
            events.clear()
            outputs = mine
            for layer in range(sum(name[0].isdigit() for name in weights) // 2):
                outputs = (outputs @ parameters[f"{layer}.weight"].T + parameters[f"{layer}.bias"]).tanh()
            answer(model, outputs.square().mean(), limit)
            note("return")
            gradients = {name: None if each.grad is None else each.grad.clone() for name, each in parameters.items()}
            hooks = sum(handle.id in (handle.hooks_dict_ref() or ()) for handle in handles)
            updates.append({"gradients": gradients, "events": list(events), "hooks": hooks})
    finally:
        for name, register in registers.items():
            setattr(Tensor, name, register)
        for kind, wait in waits.items():
            setattr(kind, "wait", wait)  # noqa: B010
    return updates


def judge(case: Case, values: list[Any]) -> str | None:
    for update, right in enumerate(_means(case)):
        for rank, value in enumerate(values):
            difference = differs(value[update]["gradients"], right, "gradients")
            if difference:
                return f"update {update}, rank {rank}: {difference}"
    for rank, value in enumerate(values):
        left = value[-1]["hooks"] if len(value) > 1 else 0
        if left:
            return f"rank {rank}: after {len(value)} updates, {left} hook{'s are' if left > 1 else ' is'} left behind"
    calls = [sum(not _is_mark(what) for what, _ in update["events"]) for update in values[0]]
    for update, count in enumerate(calls):
        if count != calls[0]:
            return f"there are {calls[0]} all-reduces in update 0, and {count} in update {update}"
    return None


def costs(case: Case, values: list[Any]) -> list[Cost]:
    """Return the costs in the part about buckets. The other parts have no budget."""
    if case.part != "buckets":
        return []
    total = sum(each.nbytes for each in case.inputs["weights"].values())
    limit, timelines = case.inputs["limit"], [value[0]["events"] for value in values]
    sizes = [[size for what, size in events if not _is_mark(what)] for events in timelines]
    return [
        Cost("all-reduces", max(map(len, sizes)), 2 * -(-total // limit), at_least=1),
        Cost("bytes in the largest of them", max(size for each in sizes for size in (0, *each)), limit),
        Cost("waits before the last gradient is ready", max(_waits(events) for events in timelines), 0),
        Cost("all-reduces started after the last gradient is ready", max(_late(events) for events in timelines), 2),
    ]


def _is_mark(what: str) -> bool:
    return what in ("wait", "return") or what.startswith("ready ")


def _last_ready(events: list) -> int:
    return max(place for place, (what, _) in enumerate(events) if what.startswith("ready "))


def _waits(events: list) -> int:
    """Return the number of waits during the backward pass: between the first gradient and the last."""
    first = next(place for place, (what, _) in enumerate(events) if what.startswith("ready "))
    return sum(what == "wait" for what, _ in events[first : _last_ready(events)])


def _late(events: list) -> int:
    return sum(not _is_mark(what) for what, _ in events[_last_ready(events) :])


def _gradients(case: Case, update: int) -> list[dict[str, Tensor]]:
    """Return each rank's own gradients in an update."""
    weights, found = case.inputs["weights"], []
    used = [name for name in weights if name[0].isdigit()]
    for mine in case.inputs["inputs"][update]:
        leaves = {name: weights[name].clone().requires_grad_() for name in used}
        outputs = mine
        for layer in range(len(used) // 2):
            outputs = (outputs @ leaves[f"{layer}.weight"].T + leaves[f"{layer}.bias"]).tanh()
        found.append(dict(zip(used, torch.autograd.grad(outputs.square().mean(), list(leaves.values())), strict=True)))
    return found


def _means(case: Case) -> list[dict[str, Tensor | None]]:
    """Return the right gradients of each update."""
    means: list[dict[str, Tensor | None]] = []
    for update in range(len(case.inputs["inputs"])):
        each = _gradients(case, update)
        mean = {name: torch.stack([gradient[name] for gradient in each]).mean(0) for name in each[0]}
        means.append({name: mean.get(name) for name in case.inputs["weights"]})
    return means


def _first_are(case: Case, values: list[Any], factor: float) -> bool:
    """Return whether all gradients of the first update are `factor` times the mean."""
    right = {name: None if each is None else factor * each for name, each in _means(case)[0].items()}
    return all(differs(value[0]["gradients"], right) is None for value in values)


@observed
def no_backward(case: Case, values: list[Any]) -> bool:
    """There are no gradients: nobody has called `loss.backward()`. Register the hooks first, then call it."""
    return all(each is None for value in values for each in value[0]["gradients"].values())


@says(THE_SUM)
def the_sum(case: Case, values: list[Any]) -> bool:
    return _first_are(case, values, case.ranks)


@says(DIVIDED_TWICE)
def divided_twice(case: Case, values: list[Any]) -> bool:
    return _first_are(case, values, 1 / case.ranks)


def not_put_back(case: Case, values: list[Any]) -> bool:
    """Every rank still has its own gradients, though they were sent. A flat bucket is a copy: after its all-reduce,
    split it and copy each piece to its parameter's `grad`.
    """
    sent = any(not _is_mark(what) for what, _ in values[0][0]["events"])
    return sent and _own_in_first(case, values) == len(_gradients(case, 0)[0])


@observed
def never_sent(case: Case, values: list[Any]) -> bool:
    """Every rank still has its own gradients, because nothing was sent."""
    sent = any(not _is_mark(what) for what, _ in values[0][0]["events"])
    return not sent and _own_in_first(case, values) > 0


def last_bucket_left(case: Case, values: list[Any]) -> bool:
    """Some gradients were averaged, others are still each rank's own: a bucket was never sent. The last one is rarely
    full, and one that waits for a parameter without a gradient never is: when `backward()` has returned, send what is
    left.
    """
    return _own_in_first(case, values) > 0


def _own_in_first(case: Case, values: list[Any]) -> int:
    """Return how many parameters have each rank's own gradient after the first update."""
    own = _gradients(case, 0)
    return sum(
        all(differs(value[0]["gradients"][name], own[rank][name]) is None for rank, value in enumerate(values))
        for name in own[0]
    )


@ahead_of_waits
def hooks_left_behind(case: Case, values: list[Any]) -> bool:
    """When your function returns, hooks of yours are still on the parameters, and will run again in a later backward
    pass, with stale state. Keep every handle that `register_post_accumulate_grad_hook` returns, and `remove()` all of
    them at the end: the hook of a parameter without a gradient never runs, so it can't remove itself.
    """
    return len(values[0]) > 1 and any(value[0]["hooks"] for value in values) and _first_are(case, values, 1)


def everything_afterwards(case: Case, values: list[Any]) -> bool:
    """The means are right, but nothing is sent before the last gradient is ready: the network is idle while the
    backward pass runs, and the ranks are idle afterwards. Start a bucket's all-reduce in a hook, as soon as the bucket
    is full.
    """
    return not any(_early(value[0]["events"]) for value in values)


def _early(events: list) -> int:
    return sum(not _is_mark(what) for what, _ in events) - _late(events)


def waits_on_the_way(case: Case, values: list[Any]) -> bool:
    """The backward pass stands still while a hook waits for a bucket that was sent, or for another rank. Start the
    all-reduce with `async_op=True`, keep the handle it returns, and wait when `backward()` is done.
    """
    return any(_waits(value[0]["events"]) for value in values)


def buckets_too_large(case: Case, values: list[Any]) -> bool:
    """A bucket is larger than `limit`. Check whether the next gradient still fits *before* you add it, and measure in
    bytes (`grad.nbytes`), not in numbers. (A single bucket for all of them could not leave before the last gradient is
    ready.)
    """
    cost = costs(case, values)[1]
    return cost.spent > cost.budget


def hardly_filled(case: Case, values: list[Any]) -> bool:
    """There are too many all-reduces, and each costs latency: put as many gradients into a bucket as fit into `limit`
    bytes.
    """
    cost = costs(case, values)[0]
    return cost.spent > cost.budget


def begun_late(case: Case, values: list[Any]) -> bool:
    """Some buckets leave while the backward pass runs, but more than two wait for its end, even though they are full.
    Send a full bucket at once.
    """
    return any(_late(value[0]["events"]) > 2 for value in values)


def stops_in_the_middle(model, loss, limit):
    """Only rank 0 sends what is left at the end."""
    loss.backward()
    if dist.get_rank() == 0:
        dist.all_reduce(torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None]))


EXERCISE = Exercise(
    **texts("02.4"),
    cases=cases,
    drive=drive,
    private={"inputs": by_rank_inside},
    judge=judge,
    costs=costs,
    symptoms=(
        no_backward,
        the_sum,
        divided_twice,
        never_sent,
        not_put_back,
        last_bucket_left,
        hooks_left_behind,
        buckets_too_large,
        everything_afterwards,
        waits_on_the_way,
        hardly_filled,
        begun_late,
    ),
    hanging=stops_in_the_middle,
)
