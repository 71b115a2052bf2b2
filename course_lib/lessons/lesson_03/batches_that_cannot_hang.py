"""03.3 Batches that cannot hang: the check, and the wrong answers it recognizes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import torch.distributed as dist

from course_lib.checks.exercise import Case, Cost, Exercise, draw
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_03._plans import (
    by_length,
    equally_many,
    fewest_updates,
    filled,
    in_order,
    is_sorted,
    is_whole,
    plans_of,
    shares_differ_by,
    steps,
    too_large,
    too_many,
    unlike,
    wrong_in,
    wrong_plan,
)
from course_lib.lessons.processes import as_process
from course_lib.lessons.symptoms import observed

MOST_CELLS = 60
DRAWN = 12  # drawn cases in each of two parts, with one input each
MANY = 300  # inputs in each of the last cases


def cases(seed: int) -> list[Case]:
    chance = random.Random(seed)

    def case(part: str, ranks: int, *problems: tuple[list[int], int]) -> Case:
        (lengths, cells), several = problems[0], len(problems) > 1
        one = f"at most {cells} cells, lengths {lengths}"
        return Case(part, ranks, {"problems": list(problems)}, f"{len(problems)} inputs" if several else one)

    def some(part: str, ranks: int, count: int) -> list[Case]:
        return [case(part, ranks, problem) for problem in draw(problem_from, count, seed + ranks)]

    length = 2 * chance.randint(2, 6)
    mixed = [step for step in range(2, 26) for _ in range(3)]
    chance.shuffle(mixed)
    return [
        case("equal counts", 2, ([length] * 6, 5 * length // 2)),
        case("equal counts", 2, ([length for _ in range(6) for length in (20, 3)], 40 + chance.randint(0, 9))),
        case("equal counts", 2, ([chance.randint(1, 9)], 10)),
        *some("equal counts", 3, DRAWN),
        case("few updates", 2, ([4, 4, 4, 4, 4, 4], 12)),
        case("few updates", 2, ([3, 4, 6, 12, 3, 4, 6, 3, 4, 3], 12)),
        case("few updates", 2, (mixed, 100 + chance.randint(0, 9))),
        *some("few updates", 2, DRAWN),
        case("alike on all ranks", 2, ([100, 60, 30], 100)),
        case("alike on all ranks", 3, (mixed, 100 + chance.randint(0, 9))),
        *(case("alike on all ranks", ranks, *draw(problem_from, MANY, seed + ranks)) for ranks in (2, 3, 4)),
    ]


def problem_from(chance: random.Random) -> tuple[list[int], int]:
    """Return lengths and a limit: few or many sequences, similar or not, some of them possibly as long as the limit."""
    cells = chance.randint(1, MOST_CELLS)
    longest = chance.choice([cells, max(1, cells // 2), chance.randint(1, cells)])
    count = chance.choice([1, 2, 3, 4, 5, 6, 7, 8, 10, 15, 30])
    kinds = chance.choice([range(1, longest + 1), [longest], [1, longest], [chance.randint(1, longest), longest]])
    return [chance.choice(kinds) for _ in range(count)], cells


def drive(answer, problems: list):
    from course_lib.core.metering import meter

    rank, ranks = dist.get_rank(), dist.get_world_size()

    def plan(lengths, cells, rank=rank):
        return [list(map(int, batch)) for batch in answer(list(lengths), cells, rank, ranks)]

    with meter() as spent:
        with as_process(rank, answer):
            plans = [plan(*problem) for problem in problems]
        here = [plan(*problems[0], rank=each) for each in range(ranks)]
    return {
        "plans": plans,
        "in one process": here[rank],
        "of all ranks": here,
        "messages": sum(spent.calls.values()) + spent.messages,
        "barriers": spent.calls.get("barrier", 0),
    }


def judge(case: Case, values: list) -> str | None:
    for plan in plans_of(case, values):
        wrong = wrong_in(plan) or (case.part == "alike on all ranks" and unlike(plan))
        if wrong:
            return f"{plan}:\n{wrong}" if len(case.inputs["problems"]) > 1 else wrong
    first = [value["plans"][0] for value in values]
    for rank, value in enumerate(values):
        for other, batches in enumerate(value["of all ranks"]):
            if batches != first[other]:
                return f"on rank {rank}, the batches of rank {other} are {batches}, but rank {other} has different ones"
    return None


def costs(case: Case, values: list) -> list[Cost]:
    sent = [Cost("collectives and messages of a rank", max(value["messages"] for value in values), 0)]
    if case.part == "equal counts":
        return sent
    updates = [
        Cost("updates", len(plan.parts[0]), fewest_updates(plan.lengths, plan.limit, case.ranks))
        for plan in plans_of(case, values)
    ]
    return [max(updates, key=lambda cost: (cost.spent - cost.budget, cost.spent)), *sent]


@observed
def depends_on_the_process(case: Case, values: list) -> bool:
    """The plan depends on the process that makes it: on the hash of a string, which every Python process salts
    differently, or on a process id, a host name or a clock. The ranks of a real job are separate processes, so each
    would make a different plan. Use nothing but the arguments.
    """
    together = plans_of(case, values)[0]
    alone = replace(together, parts=[value["in one process"] for value in values])
    return wrong_in(together) is not None and wrong_in(alone) is None


@observed
def ranks_disagree(case: Case, values: list) -> bool:
    """The ranks don't agree on one plan: asked for the batches of the same rank, they return different ones. Every rank
    must come to the same plan by itself: use nothing but the arguments, and no random numbers. (`rank` is an argument,
    too: use it, not `dist.get_rank()`.)
    """
    return any(value["of all ranks"] != values[0]["of all ranks"] for value in values)


def has_returned_lengths(case: Case, values: list) -> bool:
    """These are lengths. Return *indices* into `lengths`."""
    plan = plans_of(case, values)[0]
    found = sorted(index for batch in plan.batches for index in batch)
    return found == sorted(plan.lengths) != list(range(len(plan.lengths)))


def has_dropped_some(case: Case, values: list) -> bool:
    """The counts are equal, but only because what is left over is thrown away: those sequences are never trained on. A
    share may be smaller than the others, or even empty.
    """
    plan = wrong_plan(case, values)
    seen = Counter(index for batch in plan.batches for index in batch) if plan else Counter()
    return plan is not None and len(seen) < len(plan.lengths) and len({len(part) for part in plan.parts}) == 1


def has_repeated_some(case: Case, values: list) -> bool:
    """To make the counts equal, you give some sequences out twice, so they count twice in the gradient. Leave a share
    empty instead.
    """
    plan = wrong_plan(case, values)
    return plan is not None and sum(map(len, plan.batches)) > len(plan.lengths)


def has_dealt_out_whole_batches(case: Case, values: list) -> bool:
    """You cut everything into batches and deal these out one by one: unless their number is a multiple of the number of
    ranks, some rank has one fewer, and the others hang in the last update. All ranks know how many batches there are:
    give every rank that has none left in the last update an empty one.
    """
    plan = wrong_plan(case, values)
    if plan is None or equally_many(plan) or shares_differ_by(plan) <= 1:
        return False
    updates = [len(part) for part in plan.parts]
    return updates == sorted(updates, reverse=True) and updates[0] - updates[-1] == 1


def has_cut_its_own(case: Case, values: list) -> bool:
    """Each rank takes its sequences first and cuts batches from them on its own. A rank with longer sequences, or with
    one more of them, needs more batches than the others, and hangs. Sort and cut the sequences of all ranks first, and
    deal the batches out last.
    """
    plan = wrong_plan(case, values)
    return plan is not None and not equally_many(plan) and shares_differ_by(plan) <= 1


def has_counted_real_steps(case: Case, values: list) -> bool:
    """You limit the *real* steps of a batch. A rectangle has padding, too: its cells are the number of sequences times
    the longest length, and those must fit.
    """
    plan = wrong_plan(case, values)
    return plan is not None and too_large(plan) and all(steps(plan, batch) <= plan.limit for batch in plan.batches)


def has_limited_all_ranks_together(case: Case, values: list) -> bool:
    """You fill an update up to the limits of all ranks together, and then deal it out: one rank gets more than fits.
    The limit applies to *one* rank's batch.
    """
    plan = wrong_plan(case, values)
    if plan is None or not too_large(plan):
        return False
    updates = [[index for batch in batches for index in batch] for batches in zip(*plan.parts, strict=True)]
    return all(plan.cells_of(update) <= case.ranks * plan.limit for update in updates)


def has_one_more_than_fits(case: Case, values: list) -> bool:
    """The batches that are too large have one sequence more than fits. Check whether it fits before you add it; if you
    divide, round down.
    """
    plan = wrong_plan(case, values)
    if plan is None or not too_large(plan):
        return False
    large = [batch for batch in plan.batches if plan.cells_of(batch) > plan.limit]
    alike = all(len({plan.lengths[index] for index in batch}) == 1 for batch in large)
    return alike and all(plan.cells_of(batch[:-1]) <= plan.limit for batch in large)


def has_measured_by_another_sequence(case: Case, values: list) -> bool:
    """Measured by its *longest* sequence, a batch is too large: you measured it by another sequence, or by the mean.
    Cells are the number of sequences times the longest length.
    """
    plan = wrong_plan(case, values)
    return plan is not None and too_large(plan)


def has_gone_by_the_longest_of_all(case: Case, values: list) -> bool:
    """No batch has more sequences than would fit if each were as long as the longest *overall*. Short ones take fewer
    cells: only the longest in each *batch* counts.
    """
    most = [max(map(len, plan.batches)) <= max(1, plan.limit // max(plan.lengths)) for plan in plans_of(case, values)]
    several = any(len(batch) > 1 for plan in plans_of(case, values) for batch in plan.batches)
    plan = wrong_plan(case, values)
    return several and all(most) and plan is not None and is_whole(plan) and too_many(case, plan)


def has_one_sequence_in_a_batch(case: Case, values: list) -> bool:
    """Here every batch has a single sequence, though more would fit: no padding, but no speed either. Put as many into
    a batch as `cells` allows, going by the longest of that *batch*.
    """
    plan = wrong_plan(case, values)
    if plan is None or not is_whole(plan) or not too_many(case, plan):
        return False
    return all(len(batch) <= 1 for each in plans_of(case, values) for batch in each.batches)


def has_stopped_below_the_limit(case: Case, values: list) -> bool:
    """No batch has exactly `cells` cells, though some could: you stop one sequence too early. At most `cells` means
    that a batch of exactly that many still fits.
    """
    plan = wrong_plan(case, values)
    if plan is None or not is_whole(plan) or not too_many(case, plan):
        return False
    fullest = max(
        map(plan.cells_of, filled(plan.lengths, by_length(plan.lengths, range(len(plan.lengths))), plan.limit))
    )
    return fullest == plan.limit and max(map(max, plan.cells)) < plan.limit


def has_dealt_before_it_cut(case: Case, values: list) -> bool:
    """There are more updates than needed. Each rank's own batches are sorted by length, but together they are not: you
    get this if you deal the sequences out before you cut batches from them. Sort and cut the sequences of *all* ranks
    first, and deal the batches out last.
    """
    plan = wrong_plan(case, values)
    if plan is None or not is_whole(plan) or not too_many(case, plan) or shares_differ_by(plan) > 1:
        return False
    own = [[[plan.lengths[index] for index in batch] for batch in part if batch] for part in plan.parts]
    return not is_sorted(plan) and all(len(part) > 1 and in_order(part) for part in own)


def has_mixed_long_and_short(case: Case, values: list) -> bool:
    """Long and short sequences are in one batch: a long one stretches all the others, and padding takes up room that
    sequences could use. Put sequences of similar length together.
    """
    plan = wrong_plan(case, values)
    return plan is not None and is_whole(plan) and too_many(case, plan) and not is_sorted(plan)


def has_measured_all_ranks_by_the_longest(case: Case, values: list) -> bool:
    """There are more updates than needed: the longest sequence of an update decides for *all* ranks how many they get,
    even for those with shorter ones. Only the longest in each *batch* counts: fill one batch after another.
    """
    plan = wrong_plan(case, values)
    if plan is None or not is_whole(plan) or not too_many(case, plan):
        return False
    return all(max(sizes) - min(sizes) <= 1 for sizes in zip(*([*map(len, p)] for p in plan.parts), strict=True))


def has_left_a_rank_without_work(case: Case, values: list) -> bool:
    """The work is uneven before the last update: while one rank has a lot to do, another has half a batch or less, and
    waits. Cut batches from *all* sequences, longest first, and deal them out in turn: full ones land in the same
    update, and what is left over comes last.
    """
    plan = wrong_plan(case, values)
    return plan is not None and is_whole(plan) and unlike(plan) is not None


@observed
def has_asked_the_others(case: Case, values: list) -> bool:
    """Ranks talk to each other to find out what they already know: every rank has all lengths, and can compute how many
    batches the others have.
    """
    return any(value["messages"] > value["barriers"] for value in values)


@observed
def has_waited_for_the_others(case: Case, values: list) -> bool:
    """Ranks wait for each other at a barrier. They don't need to: no rank uses anything from another one."""
    return any(value["barriers"] for value in values)


EXERCISE = Exercise(
    **texts("03.3"),
    cases=cases,
    drive=drive,
    judge=judge,
    costs=costs,
    symptoms=(
        has_asked_the_others,
        has_waited_for_the_others,
        depends_on_the_process,
        ranks_disagree,
        has_returned_lengths,
        has_dropped_some,
        has_repeated_some,
        has_dealt_out_whole_batches,
        has_cut_its_own,
        has_counted_real_steps,
        has_limited_all_ranks_together,
        has_one_more_than_fits,
        has_measured_by_another_sequence,
        has_one_sequence_in_a_batch,
        has_stopped_below_the_limit,
        has_gone_by_the_longest_of_all,
        has_dealt_before_it_cut,
        has_mixed_long_and_short,
        has_measured_all_ranks_by_the_longest,
        has_left_a_rank_without_work,
    ),
)
