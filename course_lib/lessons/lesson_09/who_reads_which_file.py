"""09.1 Who reads which file: the check, and the common mistakes it recognizes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from course_lib.checks.exercise import Case, Exercise
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_09._plans import (
    IGNORE_SIZES,
    MOST,
    SHARE,
    as_they_come,
    cut,
    loads,
    smallest_first,
    whoever,
)
from course_lib.lessons.processes import as_process
from course_lib.lessons.symptoms import CHANGES_WHAT_IT_WAS_GIVEN, observed, says


def cases(seed: int) -> list[Case]:
    dice = random.Random(seed)

    def case(part: str, ranks: int, workers: int, sizes: list[int]) -> Case:
        how = f"{workers} workers each" if workers else "which load by themselves: worker is None"
        inputs = {"sizes": sizes, "ranks": ranks, "workers": workers}
        return Case(part, 1, inputs, f"{len(sizes)} files, {ranks} ranks, {how}; sizes {sizes}")

    def alike(files: int) -> list[int]:
        return [20 + dice.randrange(3) for _ in range(files)]

    def uneven(files: int) -> list[int]:
        return [dice.choice((1, 3, 20, 400)) for _ in range(files)]

    return [
        case("every file once", 1, 1, alike(3)),
        case("every file once", 2, 3, alike(8)),
        case("every file once", 3, 2, alike(11)),
        case("every file once", 2, 2, [7] * 9),
        case("every file once", 2, 3, alike(1)),
        case("every file once", 3, 4, uneven(5)),
        case("every file once", 4, 1, uneven(13)),
        case("every file once", 2, 5, uneven(37)),
        case("no workers", 2, 0, alike(5)),
        case("no workers", 1, 0, uneven(4)),
        case("no workers", 3, 0, uneven(2)),
        case("no workers", 4, 0, uneven(17)),
        *(
            case("equal work", ranks, workers, cut(dice, ranks * max(1, workers), pieces))
            for ranks, workers, pieces in (
                (3, 0, (1, 9)),
                (2, 2, (1, 6)),
                (3, 1, (1, 9)),
                (2, 3, (1, 5)),
                (4, 4, (1, 8)),
            )
        ),
    ]


def drive(answer, sizes: list[int], ranks: int, workers: int):
    """Call the answer for each reader as in separate processes, with separate lists and in reverse order; then do it
    again; then call it for all readers as in one process.
    """

    changed = False

    def ask(rank: int, worker: int | None, process: int):
        nonlocal changed
        given = list(sizes)
        with as_process(process, answer):
            share = answer(given, rank, ranks, worker, workers)
            changed = changed or given != sizes
            return share if share is None else [int(file) for file in share]

    readers = [(rank, worker) for rank in range(ranks) for worker in (range(workers) if workers else [None])]
    shares = [ask(*reader, number) for number, reader in reversed(list(enumerate(readers)))]
    return {
        "shares": shares[::-1],
        "again": [ask(*reader, number) for number, reader in enumerate(readers)],
        "in one process": [ask(*reader, 0) for reader in readers],
        "changed": changed,
    }


def judge(case: Case, values: list) -> str | None:
    sizes, shares = case.inputs["sizes"], values[0]["shares"]
    if len(shares) != _readers(case) or not all(isinstance(share, list) for share in shares):
        return "each reader should get a list of file numbers"
    read = Counter(file for share in shares for file in share)
    for file in range(len(sizes)):
        if read[file] != 1:
            return f"file {file} is read {read[file]} times in an epoch, by all readers together"
    strangers = read.keys() - range(len(sizes))
    if strangers:
        return f"there is no file {min(strangers)}: {len(sizes)} files have the numbers 0 to {len(sizes) - 1}"
    if asked_twice(case, values):
        return f"the readers read {shares}, but in a second call {values[0]['again']}"
    if values[0]["changed"]:
        return "the plan is right, but the call has changed `sizes`"
    if case.part == "equal work" and max(loads(sizes, shares)) > MOST * SHARE:
        read = loads(sizes, shares)
        return f"the readers have {read} bytes: {max(read)} is more than 4/3 of the {SHARE} that the best plan gives"
    return None


def _readers(case: Case) -> int:
    return case.inputs["ranks"] * max(1, case.inputs["workers"])


def _of_ranks(case: Case, shares: list) -> list[list]:
    """Return the shares of each rank's workers."""
    workers = max(1, case.inputs["workers"])
    return [shares[start : start + workers] for start in range(0, len(shares), workers)]


@observed
def depends_on_the_process(case: Case, values: list) -> bool:
    """The plan depends on the process that makes it: on the hash of a string, which every Python process salts
    differently, on a process id, a host name or a clock. Readers are separate processes, so each would make a different
    plan. Use nothing but the arguments.
    """
    return not asked_twice(case, values) and values[0]["shares"] != values[0]["in one process"]


@observed
def asked_twice(case: Case, values: list) -> bool:
    """The same reader, asked twice, returns different files: the plan changes each time. Readers are processes that do
    not communicate: each must arrive at the same plan from the same arguments.
    """
    return list(map(sorted, values[0]["shares"])) != list(map(sorted, values[0]["again"]))


@observed
@says(CHANGES_WHAT_IT_WAS_GIVEN)
def changes_the_sizes(case: Case, values: list) -> bool:
    return values[0]["changed"] and judge(case, [{**values[0], "changed": False}]) is None


@observed
def workers_read_the_same(case: Case, values: list) -> bool:
    """The classic: the workers of a rank all read the same files. The epoch is too long by a factor of the number of
    workers, and every line appears that many times. Every *worker of every rank* is a reader.
    """
    ranks = _of_ranks(case, values[0]["shares"])
    alike = all(share == mine[0] for mine in ranks for share in mine)
    return case.inputs["workers"] > 1 and alike and _each_file_is_read(case, values, case.inputs["workers"])


@observed
def everybody_reads_everything(case: Case, values: list) -> bool:
    """Every reader reads every file. Take the rank *and* the worker into account: each reader has a part of the
    files.
    """
    several = len(case.inputs["sizes"]) > 1 and _readers(case) > 1
    return several and _each_file_is_read(case, values, _readers(case))


@observed
def all_ranks_are_one_reader(case: Case, values: list) -> bool:
    """All ranks read the same files when they load by themselves. Does each rank have a number of its own? If `workers`
    is 0, `rank * workers` is 0 on every rank.
    """
    shares = values[0]["shares"]
    return not case.inputs["workers"] and len(shares) > 1 and all(share == shares[0] for share in shares)


@observed
def ranks_read_the_same(case: Case, values: list) -> bool:
    """The workers of a rank split the files, but every rank does the same: each file is read once by every rank. Take
    the rank into account, too.
    """
    ranks = _of_ranks(case, values[0]["shares"])
    alike = all(mine == ranks[0] for mine in ranks)
    return case.inputs["ranks"] > 1 and alike and _each_file_is_read(case, values, case.inputs["ranks"])


@observed
def two_readers_alike(case: Case, values: list) -> bool:
    """Some readers have exactly the same files, and some files have no reader. This is what you get if two readers get
    the same number: give the readers of rank 0 the first numbers, those of rank 1 the next, and so on. It is also what
    you get if a file is looked up by its size: another one may be just as large.
    """
    shares = [frozenset(share) for share in values[0]["shares"] if share]
    different = set(shares)
    read = {file for share in different for file in share}
    apart = sum(map(len, different)) == len(read)
    return apart and len(different) < len(shares) and len(read) < len(case.inputs["sizes"])


@observed
def leaves_files_out(case: Case, values: list) -> bool:
    """No file is read twice, but some are never read. This is what you get if the remainder of a division is left over,
    or if you count more readers than there are: `ranks * workers`, or `ranks` if there are no workers.
    """
    read = _times(values)
    return max(read.values(), default=0) <= 1 and len(read) < len(case.inputs["sizes"])


@observed
def reads_twice(case: Case, values: list) -> bool:
    """Every file is read, but some by more than one reader: an epoch repeats those examples. Each reader can know what
    the others take, if all compute the same plan.
    """
    read = _times(values)
    return len(read) == len(case.inputs["sizes"]) and max(read.values()) > 1


def does_not_look_at_sizes(case: Case, values: list) -> bool:
    """Every file is read once, but only its number decides which reader gets it: the plan ignores file sizes. The
    others wait for the fullest reader at the end of the epoch.
    """
    return any(_planned(case, values, plan) for plan in IGNORE_SIZES)


@observed
def reads_stretches(case: Case, values: list) -> bool:
    """Every file is read once, and every reader has files with consecutive numbers. Even the best plan of that kind may
    be far from equal: give a reader any files, wherever they are in the list.
    """
    shares = [sorted(share) for share in values[0]["shares"] if share]
    return all(share[-1] - share[0] == len(share) - 1 for share in shares)


def small_ones_first(case: Case, values: list) -> bool:
    """Every file goes to the reader that has the least, but one still has too much: the large files came last, when all
    readers already had their share. Which file is best placed first?
    """
    return _planned(case, values, smallest_first)


def large_ones_late(case: Case, values: list) -> bool:
    """Every file goes to the reader that has the least, in order of file number: a large file that comes late makes one
    reader's share too large. Which file is best placed first?
    """
    return _planned(case, values, as_they_come)


@observed
def equally_many(case: Case, values: list) -> bool:
    """The readers get the same number of files, give or take one, and yet one of them has far more bytes: one large
    file may be as big as many small ones. Compare bytes, not files.
    """
    counts = [len(share) for share in values[0]["shares"]]
    once = set(_times(values).values()) == {1} and len(_times(values)) == len(case.inputs["sizes"])
    return once and max(counts) - min(counts) <= 1


def _each_file_is_read(case: Case, values: list, times: int) -> bool:
    read = _times(values)
    return all(read[file] == times for file in range(len(case.inputs["sizes"])))


def _times(values: list) -> Counter:
    """Return how often each file is read."""
    return Counter(file for share in values[0]["shares"] for file in share)


def _planned(case: Case, values: list, plan: Callable) -> bool:
    """Return whether these are the shares of a plan, in any order."""
    return whoever(values[0]["shares"]) == whoever(plan(case.inputs["sizes"], _readers(case)))


EXERCISE = Exercise(
    **texts("09.1"),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=(
        changes_the_sizes,
        depends_on_the_process,
        asked_twice,
        everybody_reads_everything,
        workers_read_the_same,
        all_ranks_are_one_reader,
        ranks_read_the_same,
        two_readers_alike,
        leaves_files_out,
        reads_twice,
        does_not_look_at_sizes,
        small_ones_first,
        large_ones_late,
        reads_stretches,
        equally_many,
    ),
)
