"""09.2 What comes next: the check, and the common mistakes it recognizes."""

from __future__ import annotations

import random
from collections import Counter

from course_lib.checks.exercise import Case, Exercise, differs
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import CHANGES_WHAT_IT_WAS_GIVEN, observed, says

EPOCHS = 4


def cases(seed: int) -> list[Case]:
    dice = random.Random(seed)

    def case(part: str, size: int, batch: int, updates: int, old: int, ranks: int) -> Case:
        orders = [dice.sample(range(size), size) for _ in range(EPOCHS)]
        saved = {"updates": updates, "ranks": old}
        says = f"{size} examples in batches of {batch}, saved={saved}, now on {ranks} ranks"
        return Case(part, 1, {"orders": orders, "batch": batch, "saved": saved, "ranks": ranks}, says)

    def anywhere(size: int, batch: int) -> int:
        """Return a number of updates that leaves at least one to do, past the first epoch, where mistakes add up."""
        each = -(-size // batch)
        return dice.randrange(each, EPOCHS * each)

    return [
        case("the same layout", 12, 4, 2, 2, 2),
        case("the same layout", 12, 4, 0, 2, 2),
        case("the same layout", 12, 4, 3, 2, 2),
        case("the same layout", 12, 4, 4, 2, 2),
        case("the same layout", 9, 3, 11, 1, 1),
        case("the same layout", 40, 8, anywhere(40, 8), 3, 3),
        case("other ranks", 18, 6, 1, 2, 3),
        case("other ranks", 18, 6, 4, 3, 1),
        case("other ranks", 12, 4, 7, 2, 5),
        case("other ranks", 60, 12, anywhere(60, 12), 4, 3),
        case("other ranks", 60, 12, anywhere(60, 12), 1, 8),
        case("a small last batch", 10, 4, 2, 2, 2),
        case("a small last batch", 10, 4, 5, 2, 2),
        case("a small last batch", 10, 4, 8, 4, 2),
        case("a small last batch", 10, 4, 11, 2, 3),
        case("a small last batch", 3, 8, 2, 2, 2),
        case("a small last batch", 5, 4, 6, 2, 2),
        case("a small last batch", 31, 7, anywhere(31, 7), 3, 2),
        case("a small last batch", 47, 9, anywhere(47, 9), 2, 4),
    ]


def drive(answer, orders: list[list[int]], batch: int, saved: dict, ranks: int):
    """Call the answer for each rank with separate copies of the lists, as if each rank were a process."""
    changed = False

    def share(rank: int):
        nonlocal changed
        given = [list(order) for order in orders], dict(saved)
        mine = answer(given[0], batch, given[1], rank, ranks)
        changed = changed or given != (orders, saved)
        return mine if mine is None else [int(example) for example in mine]

    return {"shares": [share(rank) for rank in range(ranks)], "changed": changed}


def judge(case: Case, values: list) -> str | None:
    right = _shares(case, _batches(case)[case.inputs["saved"]["updates"]])
    if len(values[0]["shares"]) != len(right):
        return "each rank should get a list of examples"
    for rank, (value, mine) in enumerate(zip(values[0]["shares"], right, strict=True)):
        if differs(value, mine):
            return f"rank {rank} continues with {value}, it should be {mine}"
    return "the examples are right, but the call has changed `orders` or `saved`" if values[0]["changed"] else None


def _batches(case: Case) -> list[list[int]]:
    """Return the global batches of all updates of the job."""
    orders, batch = case.inputs["orders"], case.inputs["batch"]
    return [order[start : start + batch] for order in orders for start in range(0, len(order), batch)]


def _shares(case: Case, batch: list[int]) -> list[list[int]]:
    return [batch[rank :: case.inputs["ranks"]] for rank in range(case.inputs["ranks"])]


def _is(case: Case, values: list, batch: list[int]) -> bool:
    """Return whether the ranks continue with this batch, no matter how it is split."""
    return _all_of(values) == sorted(batch)


def _all_of(values: list) -> list[int]:
    return sorted(example for share in values[0]["shares"] for example in share)


@observed
@says(CHANGES_WHAT_IT_WAS_GIVEN)
def changes_the_orders(case: Case, values: list) -> bool:
    return values[0]["changed"] and judge(case, [{**values[0], "changed": False}]) is None


def repeats_the_last_update(case: Case, values: list) -> bool:
    """This is the batch of the last saved update: it would be trained on twice. `updates` says how many are *done*, and
    batches count from 0.
    """
    updates = case.inputs["saved"]["updates"]
    return updates > 0 and _is(case, values, _batches(case)[updates - 1])


def skips_one(case: Case, values: list) -> bool:
    """One batch is left out: after n updates, batches 0 to n - 1 are done, and number n comes next."""
    following = _batches(case)[case.inputs["saved"]["updates"] + 1 :]
    return bool(following) and _is(case, values, following[0])


def begins_the_epoch_again(case: Case, values: list) -> bool:
    """You start the epoch over: its first examples are trained on twice, and, if the job is killed often enough, the
    last ones never. The position *within* the epoch must be restored, too.
    """
    each = len(_batches(case)) // EPOCHS
    updates = case.inputs["saved"]["updates"]
    return updates % each > 0 and _is(case, values, _batches(case)[updates - updates % each])


def always_the_first_order(case: Case, values: list) -> bool:
    """The position in the epoch is right, but the order is that of epoch 0. Every epoch has its own order: find out
    which epoch the job was in.
    """
    each = len(_batches(case)) // EPOCHS
    updates = case.inputs["saved"]["updates"]
    return updates >= each and _is(case, values, _batches(case)[updates % each])


def another_epoch(case: Case, values: list) -> bool:
    """The position in the epoch is right, but the epoch is not. How many updates does an epoch have?"""
    each = len(_batches(case)) // EPOCHS
    updates = case.inputs["saved"]["updates"]
    return any(_is(case, values, _batches(case)[other * each + updates % each]) for other in range(EPOCHS))


@observed
def not_dealt_out(case: Case, values: list) -> bool:
    """A rank trains on the whole batch. The batch belongs to all ranks together: each takes its share."""
    batch = _batches(case)[case.inputs["saved"]["updates"]]
    several = len(batch) > 1 and case.inputs["ranks"] > 1
    return several and any(sorted(share) == sorted(batch) for share in values[0]["shares"])


def rest_left_out(case: Case, values: list) -> bool:
    """All ranks have the same number of examples, and the remainder is left out of the batch. Some ranks may have one
    more than others.
    """
    batch, read = _batches(case)[case.inputs["saved"]["updates"]], _all_of(values)
    divided = len(batch) // case.inputs["ranks"] * case.inputs["ranks"]
    return len(read) == divided < len(batch) and set(read) < set(batch)


@observed
def some_on_no_rank(case: Case, values: list) -> bool:
    """Some examples of the batch are on no rank. Rank r has positions r, r + ranks, r + 2 x ranks and so on, to the end
    of the batch.
    """
    batch, read = _batches(case)[case.inputs["saved"]["updates"]], _all_of(values)
    return bool(read) and len(set(read)) == len(read) and set(read) < set(batch)


def an_update_too_many(case: Case, values: list) -> bool:
    """You count one update too many in an epoch that `batch` divides: `n // batch + 1` is right only if there is a
    remainder. Round up: `-(-n // batch)`.
    """
    orders, batch, updates = case.inputs["orders"], case.inputs["batch"], case.inputs["saved"]["updates"]
    epoch, number = divmod(updates, len(orders[0]) // batch + 1)
    return not len(orders[0]) % batch and _is(case, values, orders[epoch][number * batch : (number + 1) * batch])


@observed
def nothing_is_left(case: Case, values: list) -> bool:
    """No rank has an example, but there is always a next batch: after the last one of an epoch comes the first of the
    next. How many updates does an epoch have?
    """
    return not _all_of(values)


@observed
def filled_up(case: Case, values: list) -> bool:
    """The batch is filled up with examples of the next epoch. An epoch's last batch may be smaller, and the next batch
    starts a new epoch.
    """
    batch, read = _batches(case)[case.inputs["saved"]["updates"]], _all_of(values)
    return len(batch) < case.inputs["batch"] == len(read) and not Counter(batch) - Counter(read)


@observed
def in_stretches(case: Case, values: list) -> bool:
    """The batch is right, but it is split into contiguous pieces, one per rank. That gives the same update, but here
    rank r has positions r, r + ranks, and so on.
    """
    batch = _batches(case)[case.inputs["saved"]["updates"]]
    return [example for share in values[0]["shares"] for example in share] == batch and all(values[0]["shares"])


def deals_as_before(case: Case, values: list) -> bool:
    """The batch is split over the old number of ranks: on a new number of ranks, some examples appear twice or not at
    all. The old number of ranks says nothing about what comes next.
    """
    batch = _batches(case)[case.inputs["saved"]["updates"]]
    old = case.inputs["saved"]["ranks"]
    by_the_old = [batch[rank::old] for rank in range(case.inputs["ranks"])]
    return old != case.inputs["ranks"] and values[0]["shares"] == by_the_old


def keeps_the_share(case: Case, values: list) -> bool:
    """A different number of ranks makes a different batch here: the resumed job is not the one that was saved. The
    batch is global, and has the same examples on any number of ranks.
    """
    batch, order = _right_and_order(case)
    read = _all_of(values)
    start, old, new = order.index(batch[0]), case.inputs["saved"]["ranks"], case.inputs["ranks"]
    size = case.inputs["batch"] * new // old  # as many examples per rank as before
    scaled = [one[at : at + size] for one in case.inputs["orders"] for at in range(0, len(one), size or 1)]
    updates = case.inputs["saved"]["updates"]
    by_the_share = updates < len(scaled) and read == sorted(scaled[updates])
    return old != new and len(read) != len(batch) and (by_the_share or read == sorted(order[start : start + len(read)]))


def converts_the_updates(case: Case, values: list) -> bool:
    """You convert the number of updates from the old number of ranks to the new one. An update takes one global batch,
    no matter how many ranks share it: n updates are n batches.
    """
    updates, old, new = case.inputs["saved"]["updates"], case.inputs["saved"]["ranks"], case.inputs["ranks"]
    converted = {updates * old // new, updates * new // old} - {updates}
    return any(_is(case, values, batch) for number in converted for batch in _batches(case)[number : number + 1])


def deals_the_epoch_out(case: Case, values: list) -> bool:
    """You deal the whole epoch out to the ranks, and each rank makes batches of its part. The batches are global: cut
    the epoch into batches first, then deal the next one out.
    """
    orders, ranks, updates = case.inputs["orders"], case.inputs["ranks"], case.inputs["saved"]["updates"]
    epoch, number = divmod(updates, len(_batches(case)) // EPOCHS)
    own = {max(1, case.inputs["batch"] // ranks), -(-case.inputs["batch"] // ranks)}
    parts = [orders[epoch][rank::ranks] for rank in range(ranks)]
    dealt = [[part[number * size : (number + 1) * size] for part in parts] for size in own]
    right = _shares(case, _batches(case)[updates])
    return values[0]["shares"] != right and values[0]["shares"] in dealt


def counts_examples(case: Case, values: list) -> bool:
    """The position is updates x batch examples, as if all batches were full: after an epoch with a smaller last batch,
    that is too far. Count updates: how many does an epoch have?
    """
    orders, batch, updates = case.inputs["orders"], case.inputs["batch"], case.inputs["saved"]["updates"]
    everything = [example for order in orders for example in order]
    epoch, start = divmod(updates * batch, len(orders[0]))
    ends = [everything[updates * batch :][:batch]]
    ends += [orders[epoch][start : start + batch]] if epoch < EPOCHS else []
    return len(orders[0]) % batch > 0 and updates * batch > len(orders[0]) and any(_is(case, values, e) for e in ends)


def leaves_out_the_small_batch(case: Case, values: list) -> bool:
    """You count only the full batches of an epoch. The last one may be smaller, and it is an update like any other."""
    orders, batch, updates = case.inputs["orders"], case.inputs["batch"], case.inputs["saved"]["updates"]
    full = len(orders[0]) // batch
    if not full or not len(orders[0]) % batch:
        return False
    epoch, number = divmod(updates, full)
    return epoch < EPOCHS and _is(case, values, orders[epoch][number * batch : (number + 1) * batch])


def _right_and_order(case: Case) -> tuple[list[int], list[int]]:
    updates = case.inputs["saved"]["updates"]
    each = len(_batches(case)) // EPOCHS
    return _batches(case)[updates], case.inputs["orders"][updates // each]


EXERCISE = Exercise(
    **texts("09.2"),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=(
        changes_the_orders,
        not_dealt_out,
        in_stretches,
        deals_as_before,
        keeps_the_share,
        converts_the_updates,
        rest_left_out,
        filled_up,
        leaves_out_the_small_batch,
        an_update_too_many,
        counts_examples,
        repeats_the_last_update,
        skips_one,
        begins_the_epoch_again,
        always_the_first_order,
        another_epoch,
        deals_the_epoch_out,
        some_on_no_rank,
        nothing_is_left,
    ),
)
