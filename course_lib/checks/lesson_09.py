"""Exercises of lesson 09, real clusters: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch

from course_lib.checks.exercise import Case, Exercise, differs, same_as, seeded

# 09.1 -----------------------------------------------------------------------------------------------------------------

MOST = 1.25  # what a reader may have, in means


def files_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, files: int, ranks: int, workers: int) -> Case:
        sizes = (20 + torch.randint(3, (files,), generator=generator)).tolist()
        if part == "equal work":  # a large file for each reader, but near one another
            first = torch.randint(files // 2, (), generator=generator).item()
            for file in (first, first + 1, first + 4, first + 5):
                sizes[file] *= 4
        how = f"{workers} workers each" if workers else "which load by themselves: worker is None"
        inputs = {"sizes": sizes, "ranks": ranks, "workers": workers}
        return Case(part, 1, inputs, f"{files} files, {ranks} ranks, {how}; sizes {sizes}")

    return [
        case("every file once", 8, 2, 3),
        case("every file once", 11, 3, 2),
        case("no workers", 5, 2, 0),
        case("equal work", 16, 2, 2),
    ]


def drive_files(answer, sizes: list[int], ranks: int, workers: int):
    readers = [(rank, worker) for rank in range(ranks) for worker in (range(workers) if workers else [None])]
    return [list(map(int, answer(sizes, rank, ranks, worker, workers))) for rank, worker in readers]


def judge_files(case: Case, values: list) -> str | None:
    sizes, shares = case.inputs["sizes"], values[0]
    read = [file for share in shares for file in share]
    for file in range(len(sizes)):
        if read.count(file) != 1:
            return f"file {file} is read {read.count(file)} times in an epoch, by all readers together"
    if len(read) > len(sizes):
        return f"there is no file {max(read)}"
    loads = [sum(sizes[file] for file in share) for share in shares]
    if case.part == "equal work" and max(loads) > MOST * sum(loads) / len(loads):
        return f"the readers have {loads} to read: one has more than a quarter above the mean"
    return None


def every(sizes, reader: int, readers: int) -> list[int]:
    return list(range(len(sizes)))[reader::readers]


def by_rank_alone(sizes, rank, ranks, worker, workers):
    """The classic: each worker of a rank reads all of the rank's files. The epoch is as many times too long as there
    are workers, and every line comes that often. Every *worker of every rank* is a reader.
    """
    return every(sizes, rank, ranks)


def by_worker_alone(sizes, rank, ranks, worker, workers):
    """The workers of a rank share the files, and every rank does the same: each file is read once by every rank. The
    rank must be in it, too.
    """
    return every(sizes, worker or 0, max(1, workers))


def adds_rank_and_worker(sizes, rank, ranks, worker, workers):
    """rank + worker is the same number for several readers, and some numbers have no reader. Give the readers of rank 0
    the first numbers, those of rank 1 the next, and so on.
    """
    return every(sizes, rank + (worker or 0), ranks * max(1, workers))


def strides_by_ranks(sizes, rank, ranks, worker, workers):
    """The readers' numbers overlap: a rank has as many readers as it has *workers*, so that its first one's number is
    rank x workers.
    """
    return every(sizes, rank * ranks + (worker or 0), ranks * max(1, workers))


def cuts_off_the_rest(sizes, rank, ranks, worker, workers):
    """Every reader gets equally many files, and the last files, which do not divide, are never read. Deal them out."""
    readers = ranks * max(1, workers)
    each, reader = len(sizes) // readers, rank * max(1, workers) + (worker or 0)
    return list(range(reader * each, (reader + 1) * each))


def forgets_the_loader_itself(sizes, rank, ranks, worker, workers):
    """With no workers, the training process loads: `get_worker_info()` is None, and the number of workers is 0, which
    nothing can be shared by. There is still one reader per rank.
    """
    return every(sizes, rank * workers + (worker or 0), ranks * workers)


def deals_by_number(sizes, rank, ranks, worker, workers):
    """Every file once, and nobody looks at how large they are: one reader has the large ones, and the others wait for
    it at the end of the epoch.
    """
    return every(sizes, rank * max(1, workers) + (worker or 0), ranks * max(1, workers))


def one_after_another(sizes, rank, ranks, worker, workers):
    """Each reader has a stretch of neighbouring files, whatever they weigh. Files that were written together are often
    large together: look at the sizes.
    """
    readers, reader = ranks * max(1, workers), rank * max(1, workers) + (worker or 0)
    bounds = [len(sizes) * number // readers for number in range(readers + 1)]
    return list(range(bounds[reader], bounds[reader + 1]))


FILES = Exercise(
    number="09.1",
    title="Who reads which file",
    answer="my_files",
    level="exercise",
    minutes=20,
    parts={"every file once": 2, "no workers": 1, "equal work": 2},
    read="3 · Feeding the ranks",
    hints=(
        "How many readers does the whole job have, and which number is this one? No two may have the same.",
        "Rank 0's readers come first: this one is number rank x workers + worker. Without workers, a rank is one.",
        "For equal work: all readers make the same plan, without a message, and each takes its part of it. Plan the "
        "largest file first: who should get the next one?",
    ),
    cases=files_cases,
    drive=drive_files,
    judge=judge_files,
    mistakes=(
        by_rank_alone,
        by_worker_alone,
        adds_rank_and_worker,
        strides_by_ranks,
        cuts_off_the_rest,
        forgets_the_loader_itself,
        deals_by_number,
        one_after_another,
    ),
)

# 09.2 -----------------------------------------------------------------------------------------------------------------


def resume_cases(seed: int) -> list[Case]:
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


def drive_resume(answer, orders: list[list[int]], batch: int, saved: dict, ranks: int):
    return [list(answer(orders, batch, saved, rank, ranks)) for rank in range(ranks)]


def judge_resume(case: Case, values: list) -> str | None:
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


RESUME = Exercise(
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
    cases=resume_cases,
    drive=drive_resume,
    judge=judge_resume,
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

# 09.3 -----------------------------------------------------------------------------------------------------------------


def stale_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, log: list[tuple[str, int]]) -> Case:
        lines = [f"{what} {worker}" for what, worker in log]
        return Case(part, 1, {"log": lines}, f"log {lines}")

    def to_and_fro(workers: list[int]) -> list[tuple[str, int]]:
        there_and_back = [*workers, *reversed(workers)]
        pulls = [("pull", worker) for worker in workers]
        return pulls + [(what, worker) for worker in there_and_back for what in ("push", "pull")]

    first, second, third = (1 + torch.randperm(3, generator=generator)).tolist()
    slow = [("pull", third), *to_and_fro([first, second]), ("push", third), ("pull", third), ("push", first)]
    late = [*to_and_fro([first, second]), ("push", second), ("push", first), ("pull", second), ("push", second)]
    return [
        case("equal workers", to_and_fro([first, second, third])),
        case("a slow worker", slow),
        case("a slow worker", late),
    ]


def drive_stale(answer, log: list[str]):
    return list(map(int, answer([tuple(line.split()) for line in log])))


def right_stale(case: Case) -> list:
    version, seen, stale = 0, {}, []
    for what, worker in (line.split() for line in case.inputs["log"]):
        if what == "pull":
            seen[worker] = version
        else:
            stale.append(version - seen[worker])
            version += 1
    return [stale]


def counts_its_own(log):
    """One too many each time: the update that this gradient makes is counted as well. A gradient of the newest weights
    has staleness 0.
    """
    return [age + 1 for age in right_of(log)]


def right_of(log, since=("pull",), counted=("push",)) -> list[int]:
    """How many of `counted` happened before each push, since the worker's last of `since`."""
    done, seen, stale = 0, {}, []
    for what, worker in log:
        if what == "push":
            stale.append(done - seen.get(worker, 0))
        done += what in counted
        if what in since:
            seen[worker] = done
    return stale


def since_the_start(log):
    """These are the updates since the start of the job: what counts are those since this worker fetched its weights."""
    return right_of(log, since=())


def since_its_last_push(log):
    """You count from the worker's last push. Between it and the pull that follows, others may have pushed, and the
    worker has fetched what they did: count from the *pull*.
    """
    return right_of(log, since=("push",))


def counts_pulls(log):
    """You count what other workers fetched. Fetching changes no weights: only a push makes a new version."""
    return right_of(log, counted=("pull",))


def workers_less_one(log):
    """Workers - 1 is what equal workers have once they are under way. The log says what each gradient had: the first
    ones are fresher, and a slow worker's much staler.
    """
    return [len({worker for _, worker in log}) - 1] * sum(what == "push" for what, _ in log)


STALE = Exercise(
    number="09.3",
    title="How old is a gradient",
    answer="staleness",
    level="warm-up",
    minutes=10,
    parts={"equal workers": 1, "a slow worker": 1},
    read="5 · Synchronous against asynchronous",
    hints=(
        "The server's version goes up by one with every push. What must be remembered at a pull?",
        "A dict from the worker to the version that it fetched. At its push: the version now, less that one.",
    ),
    cases=stale_cases,
    drive=drive_stale,
    judge=same_as(right_stale),
    mistakes=(
        counts_its_own,
        since_the_start,
        since_its_last_push,
        counts_pulls,
        workers_less_one,
    ),
)

EXERCISES = (FILES, RESUME, STALE)
