"""10.3 Every example once: the check, and the common mistakes it recognizes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import chain

from course_lib.checks.exercise import Case, Exercise
from course_lib.checks.texts import texts
from course_lib.lessons.processes import as_process
from course_lib.lessons.symptoms import CHANGES_WHAT_IT_WAS_GIVEN, observed, says

Batches = list[list[int]]  # one worker's batches, step by step


def cases(seed: int) -> list[Case]:
    dice = random.Random(seed)

    def case(part: str, examples: int, batch: int, workers: int) -> Case:
        order = dice.sample(range(examples), examples)
        says = f"{examples} examples in the order {order}, batches of {batch}, {workers} workers"
        return Case(part, 1, {"order": order, "batch": batch, "workers": workers}, says)

    return [
        case("every example once", 4, 2, 1),
        case("every example once", 8, 4, 2),
        case("every example once", 10, 4, 2),
        case("every example once", 11, 4, 3),
        case("every example once", 23, 6, 4),
        case("equally many steps", 6, 5, 2),
        case("equally many steps", 10, 9, 4),
        case("equally many steps", 15, 7, 3),
        case("equally many steps", 2, 8, 3),
        case("one process's batches", 8, 4, 2),
        case("one process's batches", 12, 6, 3),
        case("one process's batches", 19, 6, 2),
        case("one process's batches", 30, 7, 4),
    ]


def drive(answer: Callable, order: list[int], batch: int, workers: int) -> dict[str, list[Batches] | bool]:
    """Call the answer for each worker as in separate processes, and once more for all workers as in one process."""

    changed = False

    def ask(worker: int, process: int) -> Batches:
        nonlocal changed
        given = list(order)
        with as_process(process, answer):
            shares = [[int(example) for example in share] for share in answer(given, batch, worker, workers)]
        changed = changed or given != order
        return shares

    return {
        "shares": [ask(worker, worker) for worker in reversed(range(workers))][::-1],
        "in one process": [ask(worker, 0) for worker in range(workers)],
        "changed": changed,
    }


def judge(case: Case, values: list) -> str | None:
    if difference := _shares_differ(case, values):
        return difference
    return "the batches are right, but the call has changed `order`" if values[0]["changed"] else None


def _shares_differ(case: Case, values: list) -> str | None:
    given, order = values[0]["shares"], case.inputs["order"]
    seen = Counter(chain.from_iterable(chain.from_iterable(given)))
    for example in order:
        if seen[example] != 1:
            return f"example {example} is seen {seen[example]} times in an epoch, by all workers together"
    if strangers := seen.keys() - set(order):
        return f"there is no example {min(strangers)}"
    if case.part == "every example once":
        return None
    steps = [len(batches) for batches in given]
    if len(set(steps)) > 1:
        return f"the workers have {steps} steps: a worker that has more waits for the others forever"
    if case.part == "equally many steps":
        return None
    return _batches_differ(case, given)


def _batches_differ(case: Case, given: list[Batches]) -> str | None:
    right = _global_batches(case)
    if len(given[0]) != len(right):
        return f"there are {len(given[0])} steps, but one process has {len(right)}"
    for step, batch in enumerate(right):
        together = sorted(chain.from_iterable(batches[step] for batches in given))
        if together != sorted(batch):
            return f"in step {step} all workers together have {together}, but one process has {sorted(batch)}"
        largest = max(len(batches[step]) for batches in given)
        if largest > -(-len(batch) // len(given)):
            return (
                f"in step {step} one worker has {largest} of {len(batch)} examples, and there are {len(given)} workers"
            )
    return None


def _global_batches(case: Case) -> Batches:
    order, batch = case.inputs["order"], case.inputs["batch"]
    return [order[start : start + batch] for start in range(0, len(order), batch)]


def _seen(values: list) -> Counter:
    return Counter(chain.from_iterable(chain.from_iterable(values[0]["shares"])))


@observed
def depends_on_the_process(case: Case, values: list) -> bool:
    """The plan depends on the process that makes it: on the hash of a string, which every Python process salts
    differently, on a process id, a host name or a clock. Workers are separate processes, so each would make a different
    plan. Use nothing but the arguments.
    """
    alone = [{**values[0], "shares": values[0]["in one process"]}]
    return judge(case, alone) is None


@observed
@says(CHANGES_WHAT_IT_WAS_GIVEN)
def changes_the_order(case: Case, values: list) -> bool:
    return values[0]["changed"] and _shares_differ(case, values) is None


@observed
def gives_everything_to_everybody(case: Case, values: list) -> bool:
    """Every worker gets every example: that is `AutoShardPolicy.OFF`, and each example counts once per worker. Take
    this worker's part of each batch: every `workers`-th example, starting at position `worker`.
    """
    seen = _seen(values)
    return case.inputs["workers"] > 1 and all(seen[each] == case.inputs["workers"] for each in case.inputs["order"])


@observed
def drops_within_batches(case: Case, values: list) -> bool:
    """No example appears twice, but some are missing even from a full batch: when it doesn't divide evenly, the
    remainder is on no worker. Some workers should have one example more than others.
    """
    seen, first = _seen(values), _global_batches(case)[0]
    is_full = len(case.inputs["order"]) > len(first)
    return is_full and max(seen.values(), default=1) <= 1 and 0 < sum(seen[each] for each in first) < len(first)


@observed
def drops_the_rest(case: Case, values: list) -> bool:
    """No example appears twice, but some are never used. This is what you get if the remainder is dropped, as
    `drop_remainder` does: the last batch is just smaller.
    """
    seen = _seen(values)
    return max(seen.values(), default=1) <= 1 and len(seen) < len(case.inputs["order"])


@observed
def repeats_to_fill(case: Case, values: list) -> bool:
    """All examples are used, but some appear more than once, and weigh more. This is what you get if shares are filled
    up to make them equal: a share may be smaller, or even empty.
    """
    seen = _seen(values)
    return all(seen[each] >= 1 for each in case.inputs["order"]) and max(seen.values()) > 1


@observed
def leaves_empty_shares_out(case: Case, values: list) -> bool:
    """A worker whose part of the last batch is empty has no step for it. It must still take part in that update, with
    nothing: keep the empty list.
    """
    right = len(_global_batches(case))
    steps = [len(batches) for batches in values[0]["shares"]]
    return max(steps) == right > min(steps) and all(all(batches) for batches in values[0]["shares"])


def shards_before_batching(case: Case, values: list) -> bool:
    """You cut each worker's own examples into batches, of the global size or of that divided by the number of workers.
    Their steps then differ from one process's. Cut the *order* into global batches first, and take a part of each.
    """
    workers, batch, order = (case.inputs[name] for name in ("workers", "batch", "order"))
    sizes = {batch, max(1, batch // workers), -(-batch // workers)}
    by_turns = [order[worker::workers] for worker in range(workers)]
    each = -(-len(order) // workers)
    stretches = [order[worker * each : (worker + 1) * each] for worker in range(workers)]
    return any(
        values[0]["shares"] == [[own[at : at + size] for at in range(0, len(own), size)] for own in shares]
        for shares in (by_turns, stretches)
        for size in sizes
    )


@observed
def deals_whole_batches(case: Case, values: list) -> bool:
    """Each worker gets whole batches: one step of all workers is several batches of one process. Each worker should
    take a part of *every* batch.
    """
    whole = {tuple(sorted(batch)) for batch in _global_batches(case)}
    given = [tuple(sorted(share)) for batches in values[0]["shares"] for share in batches if share]
    return case.inputs["workers"] > 1 and bool(given) and all(share in whole for share in given)


@observed
def is_lopsided(case: Case, values: list) -> bool:
    """The batches are right, but one worker has a larger part than it needs to: all wait for it in each step. No worker
    needs more than a batch divided by the number of workers, rounded up.
    """
    return case.part == "one process's batches" and (judge(case, values) or "").endswith("workers")


EXERCISE = Exercise(
    **texts("10.3"),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=(
        changes_the_order,
        depends_on_the_process,
        gives_everything_to_everybody,
        drops_within_batches,
        drops_the_rest,
        repeats_to_fill,
        shards_before_batching,
        is_lopsided,
        deals_whole_batches,
        leaves_empty_shares_out,
    ),
)
