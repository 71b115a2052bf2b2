"""09.2 What comes next: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch

from course_lib.checks.exercise import Case, Exercise, differs, seeded


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, size: int, batch: int, updates: int, old: int, ranks: int) -> Case:
        orders = [torch.randperm(size, generator=generator).tolist() for _ in range(4)]
        saved = {"updates": updates, "ranks": old}
        says = f"{size} examples in batches of {batch}, saved={saved}, now on {ranks} ranks"
        return Case(part, 1, {"orders": orders, "batch": batch, "saved": saved, "ranks": ranks}, says)

    return [
        case("the same layout", 12, 4, 2, 2, 2),
        case("the same layout", 12, 4, 4, 2, 2),
        case("other ranks", 18, 6, 1, 2, 3),
        case("a small last batch", 10, 4, 5, 2, 2),
        case("a small last batch", 10, 4, 8, 4, 2),
    ]


def drive(answer, orders: list[list[int]], batch: int, saved: dict, ranks: int):
    return [list(answer(orders, batch, saved, rank, ranks)) for rank in range(ranks)]


def judge(case: Case, values: list) -> str | None:
    (right,) = right_resume(case)
    for rank, (value, mine) in enumerate(zip(values[0], right, strict=True)):
        if differs(value, mine):
            return f"rank {rank} goes on with {value}, it should be {mine}"
    return None


def right_resume(case: Case) -> list:
    orders, batch, saved, ranks = case.inputs.values()
    everything = [order[start : start + batch] for order in orders for start in range(0, len(order), batch)]
    return [[everything[saved["updates"]][rank::ranks] for rank in range(ranks)]]


def begins_the_epoch_again(orders, batch, saved, rank, ranks):
    """You begin the epoch again: its first examples are trained on twice, and, if the job is killed often enough, the
    last ones never. The position *within* the epoch must be restored, too.
    """
    return orders[saved["updates"] * batch // len(orders[0])][:batch][rank::ranks]


def always_the_first_order(orders, batch, saved, rank, ranks):
    """The place in the epoch is right, and the order is that of epoch 0. Every epoch has its own order: find out in
    which one the job was.
    """
    start = saved["updates"] % -(-len(orders[0]) // batch) * batch
    return orders[0][start : start + batch][rank::ranks]


def repeats_the_last_update(orders, batch, saved, rank, ranks):
    """This is the batch of the last update that was saved: it would be made twice. `updates` says how many are *done*,
    and batches count from 0.
    """
    epoch, number = divmod(saved["updates"] - 1, -(-len(orders[0]) // batch))
    return orders[epoch][number * batch : (number + 1) * batch][rank::ranks]


def skips_one(orders, batch, saved, rank, ranks):
    """One batch is left out: after n updates, batches 0 to n - 1 are done, and number n comes next."""
    epoch, number = divmod(saved["updates"] + 1, -(-len(orders[0]) // batch))
    return orders[epoch][number * batch : (number + 1) * batch][rank::ranks]


def deals_as_before(orders, batch, saved, rank, ranks):
    """The batch is dealt out to as many ranks as there were: on a new number of ranks some examples come twice, or not
    at all. The old number of ranks says nothing about what comes next.
    """
    epoch, number = divmod(saved["updates"], -(-len(orders[0]) // batch))
    return orders[epoch][number * batch : (number + 1) * batch][rank :: saved["ranks"]]


def keeps_the_share(orders, batch, saved, rank, ranks):
    """Each rank keeps the share that it had, so that another number of ranks makes another batch: the job that goes on
    is not the one that was saved. The batch is of all ranks together.
    """
    epoch, number = divmod(saved["updates"], -(-len(orders[0]) // batch))
    return orders[epoch][number * batch :][: batch // saved["ranks"] * ranks][rank::ranks]


def leaves_out_the_small_batch(orders, batch, saved, rank, ranks):
    """You count only the full batches of an epoch. The last one may be smaller, and it is an update like any other."""
    epoch, number = divmod(saved["updates"], len(orders[0]) // batch)
    return orders[epoch][number * batch : (number + 1) * batch][rank::ranks]


def counts_examples(orders, batch, saved, rank, ranks):
    """You count updates x batch examples, as if all batches were full: after an epoch with a smaller last batch, you
    are too far. Count updates: how many does an epoch have?
    """
    epoch, start = divmod(saved["updates"] * batch, len(orders[0]))
    return (orders[epoch][start:] + orders[epoch + 1])[:batch][rank::ranks]


EXERCISE = Exercise(
    number="09.2",
    title="What comes next",
    answer="next_examples",
    level="exercise",
    minutes=15,
    parts={"the same layout": 2, "other ranks": 1, "a small last batch": 1},
    read="4 · Checkpoint, resume, restart",
    hints=(
        "How many updates does one epoch have, if its last batch may be smaller?",
        "Epoch and batch follow from the number of updates: `divmod`. After n updates, batch n comes next, from 0 on.",
        "Find the batch of all ranks together first. Only then deal it out, to the ranks that there are *now*.",
    ),
    cases=cases,
    drive=drive,
    judge=judge,
    mistakes=(
        begins_the_epoch_again,
        always_the_first_order,
        repeats_the_last_update,
        skips_one,
        deals_as_before,
        keeps_the_share,
        leaves_out_the_small_batch,
        counts_examples,
    ),
)
