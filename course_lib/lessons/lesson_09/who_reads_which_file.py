"""09.1 Who reads which file: how an answer is checked, and the common mistakes it recognizes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from course_lib.checks.exercise import Case, Exercise
from course_lib.lessons.processes import as_process
from course_lib.lessons.symptoms import observed

MOST = 4 / 3  # times the fullest reader of the best plan: largest file first never needs more
SHARE = 600  # bytes per reader in the best plan, for the cases made from one


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
            case("equal work", ranks, workers, _cut(dice, ranks * max(1, workers), pieces))
            for ranks, workers, pieces in (
                (3, 0, (1, 9)),
                (2, 2, (1, 6)),
                (3, 1, (1, 9)),
                (2, 3, (1, 5)),
                (4, 4, (1, 8)),
            )
        ),
    ]


def _cut(dice: random.Random, readers: int, pieces: tuple[int, int]) -> list[int]:
    """Return file sizes that can be split evenly: each reader's share, cut into pieces. Careless plans exceed the
    limit, and plans that are told different things differ.
    """
    while True:
        sizes = []
        for reader in range(readers):
            many = pieces[reader % 2] if reader < 2 else dice.randint(*pieces)
            cuts = sorted(dice.sample(range(1, SHARE), many - 1))
            sizes += [end - start for start, end in zip([0, *cuts], [*cuts, SHARE], strict=True)]
        dice.shuffle(sizes)
        too_full = all(max(_loads(sizes, plan(sizes, readers))) > MOST * SHARE for plan in CARELESS)
        kinds = [{_whoever(plan(sizes, readers)) for plan in kind} for kind in KINDS]
        if too_full and len(set().union(*kinds)) == sum(map(len, kinds)):
            return sizes


def _whoever(shares: list[list[int]]) -> frozenset:
    """Return a plan without the information which reader has which share."""
    return frozenset(map(frozenset, shares))


def _loads(sizes: list[int], shares: list[list[int]]) -> list[int]:
    return [sum(sizes[file] for file in share) for share in shares]


def by_number(sizes: list[int], readers: int) -> list[list[int]]:
    return [list(range(len(sizes)))[reader::readers] for reader in range(readers)]


def by_stretches(sizes: list[int], readers: int) -> list[list[int]]:
    bounds = [len(sizes) * reader // readers for reader in range(readers + 1)]
    return [list(range(start, end)) for start, end in pairwise(bounds)]


def by_stretches_rounded_up(sizes: list[int], readers: int) -> list[list[int]]:
    bounds = [-(-len(sizes) * reader // readers) for reader in range(readers + 1)]
    return [list(range(start, end)) for start, end in pairwise(bounds)]


def by_chunks(sizes: list[int], readers: int) -> list[list[int]]:
    each = -(-len(sizes) // readers)
    return [list(range(len(sizes)))[reader * each : (reader + 1) * each] for reader in range(readers)]


def by_stretches_of_bytes(sizes: list[int], readers: int) -> list[list[int]]:
    before, shares = 0, [[] for _ in range(readers)]
    for file, size in enumerate(sizes):
        shares[before * readers // sum(sizes)].append(file)
        before += size
    return shares


def sorted_by_turns(sizes: list[int], readers: int) -> list[list[int]]:
    order = sorted(range(len(sizes)), key=lambda file: -sizes[file])
    return [order[reader::readers] for reader in range(readers)]


def to_and_fro(sizes: list[int], readers: int) -> list[list[int]]:
    order, there = sorted(range(len(sizes)), key=lambda file: -sizes[file]), list(range(readers))
    turns = [*there, *reversed(there)] * len(sizes)
    return [[file for file, whose in zip(order, turns, strict=False) if whose == reader] for reader in range(readers)]


def smallest_first(sizes: list[int], readers: int) -> list[list[int]]:
    return to_whoever_has_least(sizes, readers, sorted(range(len(sizes)), key=lambda file: sizes[file]))


def as_they_come(sizes: list[int], readers: int) -> list[list[int]]:
    return to_whoever_has_least(sizes, readers, list(range(len(sizes))))


def to_whoever_has_least(sizes: list[int], readers: int, order: list[int]) -> list[list[int]]:
    shares, loads = [[] for _ in range(readers)], [0] * readers
    for file in order:
        least = loads.index(min(loads))
        shares[least].append(file)
        loads[least] += sizes[file]
    return shares


CARELESS: tuple[Callable, ...] = (by_number, by_stretches, sorted_by_turns, to_and_fro, smallest_first)
IGNORE_SIZES: tuple[Callable, ...] = (by_number, by_stretches, by_stretches_rounded_up, by_chunks)
KINDS = (IGNORE_SIZES, (sorted_by_turns, to_and_fro), (smallest_first,), (as_they_come,), (by_stretches_of_bytes,))


def drive(answer, sizes: list[int], ranks: int, workers: int):
    """Call the answer for each reader, like separate processes: with separate lists, in reverse order, then again; and
    once more for all in one process.
    """

    def ask(rank: int, worker: int | None, process: int):
        with as_process(process, answer):
            share = answer(list(sizes), rank, ranks, worker, workers)
            return share if share is None else [int(file) for file in share]

    readers = [(rank, worker) for rank in range(ranks) for worker in (range(workers) if workers else [None])]
    shares = [ask(*reader, number) for number, reader in reversed(list(enumerate(readers)))]
    return {
        "shares": shares[::-1],
        "again": [ask(*reader, number) for number, reader in enumerate(readers)],
        "in one process": [ask(*reader, 0) for reader in readers],
    }


def judge(case: Case, values: list) -> str | None:
    sizes, shares = case.inputs["sizes"], values[0]["shares"]
    if len(shares) != _readers(case) or not all(isinstance(share, list) for share in shares):
        return "each reader should get a list of numbers of files"
    read = Counter(file for share in shares for file in share)
    for file in range(len(sizes)):
        if read[file] != 1:
            return f"file {file} is read {read[file]} times in an epoch, by all readers together"
    strangers = read.keys() - range(len(sizes))
    if strangers:
        return f"there is no file {min(strangers)}: {len(sizes)} files have the numbers 0 to {len(sizes) - 1}"
    if asked_twice(case, values):
        return f"the readers read {shares}, and, asked again, {values[0]['again']}"
    if case.part == "equal work" and max(_loads(sizes, shares)) > MOST * SHARE:
        loads = _loads(sizes, shares)
        return f"the readers have {loads} bytes: {max(loads)} is more than 4/3 of the {SHARE} that the best plan gives"
    return None


def _readers(case: Case) -> int:
    return case.inputs["ranks"] * max(1, case.inputs["workers"])


def _of_ranks(case: Case, shares: list) -> list[list]:
    """Return the shares of each rank's workers."""
    workers = max(1, case.inputs["workers"])
    return [shares[start : start + workers] for start in range(0, len(shares), workers)]


@observed
def depends_on_the_process(case: Case, values: list) -> bool:
    """The plan depends on the process that makes it: on the hash of a text, which every Python process salts
    differently, on a process id, a host name or a clock. Readers are separate processes, so each would plan something
    else. Use nothing but the arguments.
    """
    return not asked_twice(case, values) and values[0]["shares"] != values[0]["in one process"]


@observed
def asked_twice(case: Case, values: list) -> bool:
    """The same reader, asked twice, returns different files: the plan changes each time. Readers are processes that do
    not communicate: each must arrive at the same plan from the same arguments.
    """
    return list(map(sorted, values[0]["shares"])) != list(map(sorted, values[0]["again"]))


@observed
def workers_read_the_same(case: Case, values: list) -> bool:
    """The classic: the workers of a rank all read the same files. The epoch is too long by a factor of the number of
    workers, and every line comes that many times. Every *worker of every rank* is a reader.
    """
    ranks = _of_ranks(case, values[0]["shares"])
    return case.inputs["workers"] > 1 and all(share == mine[0] for mine in ranks for share in mine)


@observed
def ranks_read_the_same(case: Case, values: list) -> bool:
    """The workers of a rank share the files, but every rank does the same: each file is read once by every rank. Take
    the rank into account, too.
    """
    ranks = _of_ranks(case, values[0]["shares"])
    return case.inputs["ranks"] > 1 and all(mine == ranks[0] for mine in ranks) and any(map(any, ranks[0]))


@observed
def two_readers_alike(case: Case, values: list) -> bool:
    """Some readers have exactly the same files, and some files have no reader. This is what you get if two readers get
    the same number: give the readers of rank 0 the first numbers, those of rank 1 the next, and so on.
    """
    shares = [frozenset(share) for share in values[0]["shares"] if share]
    different = set(shares)
    read = {file for share in different for file in share}
    apart = sum(map(len, different)) == len(read)
    return apart and len(different) < len(shares) and len(read) < len(case.inputs["sizes"])


@observed
def leaves_files_out(case: Case, values: list) -> bool:
    """No file is read twice, but some are never read: perhaps the remainder of a division is left over. Assign those
    files, too.
    """
    read = _times(values)
    return max(read.values(), default=0) <= 1 and len(read) < len(case.inputs["sizes"])


@observed
def reads_twice(case: Case, values: list) -> bool:
    """Every file is read, but some by more than one reader: an epoch has those examples again. Each reader can know
    what the others take, if all compute the same plan.
    """
    read = _times(values)
    return len(read) == len(case.inputs["sizes"]) and max(read.values()) > 1


def does_not_look_at_sizes(case: Case, values: list) -> bool:
    """Every file is read once, but its number alone decides by which reader: the plan ignores file sizes. The others
    wait for the fullest reader at the end of the epoch.
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
    """Every file goes to the reader that has the least, in the order of their numbers: a large file that comes late
    makes one reader's share too large. Which file is best placed first?
    """
    return _planned(case, values, as_they_come)


@observed
def equally_many(case: Case, values: list) -> bool:
    """The readers get the same number of files, give or take one, and yet one of them has far more bytes: a large file
    may be as much as many small ones. Compare bytes, not files.
    """
    counts = [len(share) for share in values[0]["shares"]]
    once = set(_times(values).values()) == {1} and len(_times(values)) == len(case.inputs["sizes"])
    return once and max(counts) - min(counts) <= 1


def _times(values: list) -> Counter:
    """Return how often each file is read."""
    return Counter(file for share in values[0]["shares"] for file in share)


def _planned(case: Case, values: list, plan: Callable) -> bool:
    """Return whether these are the shares of a plan, in any order."""
    return _whoever(values[0]["shares"]) == _whoever(plan(case.inputs["sizes"], _readers(case)))


EXERCISE = Exercise(
    number="09.1",
    title="Who reads which file",
    answer="my_files",
    level="exercise",
    minutes=15,
    parts={"every file once": 2, "no workers": 1, "equal work": 2},
    read="4 · Feeding the ranks",
    hints=(
        "How many readers does the whole job have, and which number is this one? Every reader needs a unique number.",
        "Rank 0's readers come first: this one is number rank x workers + worker. Without workers, a rank is one.",
        "For equal work: all readers compute the same plan, without communication, and each takes its part. Plan the "
        "largest file first: which reader should get the next one?",
    ),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=(
        depends_on_the_process,
        asked_twice,
        workers_read_the_same,
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
    errors={
        "by zero": "Is it the number of readers? If a rank loads by itself, `workers` is 0, but the rank is still one "
        "reader.",
        "NoneType": "If a rank loads by itself, `worker` is None, not a number: the rank is then its only reader.",
    },
)
