"""The batches that an answer to 03.3 plans, and functions that examine them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from course_lib.checks.exercise import Case


@dataclass(frozen=True)
class Plan:
    """One input, and the batches that the ranks made from it."""

    lengths: list[int]
    limit: int
    parts: list[list[list[int]]]  # by rank and update

    @property
    def cells(self) -> list[list[int]]:
        """The cells of each rank's batches."""
        return [[self.cells_of(batch) for batch in part] for part in self.parts]

    @property
    def batches(self) -> list[list[int]]:
        """The non-empty batches of all ranks."""
        return [batch for part in self.parts for batch in part if batch]

    def cells_of(self, batch: list[int]) -> int:
        return len(batch) * max((self.lengths[index] for index in batch), default=0)

    def __str__(self) -> str:
        return f"lengths {self.lengths}, at most {self.limit} cells"


def plans_of(case: Case, values: list) -> list[Plan]:
    parts = zip(*(value["plans"] for value in values), strict=True)
    return [
        Plan(lengths, cells, list(of_ranks))
        for (lengths, cells), of_ranks in zip(case.inputs["problems"], parts, strict=True)
    ]


def wrong_in(plan: Plan) -> str | None:
    """Return what is wrong, or None if every sequence appears once, batches fit, and all ranks have the same number."""
    count = len(plan.lengths)
    seen = Counter(index for part in plan.parts for batch in part for index in batch)
    unknown = next((index for index in seen if not 0 <= index < count), None)
    if unknown is not None:
        return f"there is no sequence {unknown}: they are numbered from 0 to {count - 1}"
    missing = next((index for index in range(count) if index not in seen), None)
    if missing is not None:
        return f"nobody has sequence {missing} (of {count})"
    (most, times), *_ = seen.most_common(1)
    if times > 1:
        return f"sequence {most} is given out {times} times"
    updates = [len(part) for part in plan.parts]
    if len(set(updates)) > 1:
        return f"the ranks have {updates} batches: some would wait for a batch that others do not have"
    largest = max(map(max, plan.cells))
    if largest > plan.limit:
        return f"a batch has {largest} cells (sequences times the longest length), more than {plan.limit}"
    return None


def unlike(plan: Plan) -> str | None:
    for number, cells in enumerate(list(zip(*plan.cells, strict=True))[:-1]):
        if not all(cells) or 2 * (max(cells) - min(cells)) >= plan.limit:
            return (
                f"in update {number} of {len(plan.parts[0])} the ranks have {list(cells)} cells: some wait for others"
            )
    return None


def fewest_updates(lengths: list[int], cells: int, ranks: int) -> int:
    """Return the minimum number of updates: sort by length, longest first, and fill one batch after another."""
    return -(-len(filled(lengths, by_length(lengths, range(len(lengths))), cells)) // ranks)


def too_many(case: Case, plan: Plan) -> bool:
    fewest = fewest_updates(plan.lengths, plan.limit, case.ranks)
    return case.part != "equal counts" and len(plan.parts[0]) > fewest


def wrong_plan(case: Case, values: list) -> Plan | None:
    """Return the first input whose batches are wrong in this part of the exercise."""
    for plan in plans_of(case, values):
        if any(not 0 <= index < len(plan.lengths) for batch in plan.batches for index in batch):
            return None
        if wrong_in(plan) or (case.part == "alike on all ranks" and unlike(plan)) or too_many(case, plan):
            return plan
    return None


def equally_many(plan: Plan) -> bool:
    return len({len(part) for part in plan.parts}) == 1


def too_large(plan: Plan) -> bool:
    return equally_many(plan) and max(map(plan.cells_of, plan.batches), default=0) > plan.limit


def is_whole(plan: Plan) -> bool:
    return wrong_in(plan) is None


def steps(plan: Plan, batch: list[int]) -> int:
    return sum(plan.lengths[index] for index in batch)


def shares_differ_by(plan: Plan) -> int:
    """Return the difference between the largest and the smallest number of sequences of a rank."""
    shares = [sum(map(len, part)) for part in plan.parts]
    return max(shares) - min(shares)


def is_sorted(plan: Plan) -> bool:
    """Return whether the batches, or the updates, have ranges of lengths that overlap at most at their ends."""
    updates = [[index for batch in batches for index in batch] for batches in zip(*plan.parts, strict=True)]
    return any(in_order([[plan.lengths[index] for index in of] for of in cut if of]) for cut in (plan.batches, updates))


def in_order(cut: list[list[int]]) -> bool:
    ends = sorted((min(lengths), max(lengths)) for lengths in cut)
    return all(longest <= shortest for (_, longest), (shortest, _) in pairwise(ends))


def by_length(lengths, indices):
    return sorted(indices, key=lambda index: -lengths[index])


def filled(lengths, order, cells):
    """Return batches of consecutive sequences, each as full as the limit allows for its longest sequence."""
    batches, longest = [[]], 0
    for index in order:
        longest = max(longest, lengths[index])
        if batches[-1] and (len(batches[-1]) + 1) * longest > cells:
            batches.append([])
            longest = lengths[index]
        batches[-1].append(index)
    return batches
