"""09.1 Who reads which file: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch

from course_lib.checks.exercise import Case, Exercise, seeded

MOST = 1.25  # what a reader may have, in means


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, files: int, ranks: int, workers: int) -> Case:
        sizes = (20 + torch.randint(3, (files,), generator=generator)).tolist()
        if part == "equal work":  # a large file for each reader, but near one another
            first = int(torch.randint(files // 2, (), generator=generator))
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


def drive(answer, sizes: list[int], ranks: int, workers: int):
    readers = [(rank, worker) for rank in range(ranks) for worker in (range(workers) if workers else [None])]
    return [list(map(int, answer(sizes, rank, ranks, worker, workers))) for rank, worker in readers]


def judge(case: Case, values: list) -> str | None:
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


EXERCISE = Exercise(
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
    cases=cases,
    drive=drive,
    judge=judge,
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
