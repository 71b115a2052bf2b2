"""07.1 Rows and columns: the check, and the common mistakes it recognizes."""

from __future__ import annotations

from random import Random
from typing import Any

from course_lib.checks.exercise import Case, Exercise, differs, draw
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_07 import table
from course_lib.lessons.symptoms import observed

GROUPS, NEIGHBORS = ("row", "column"), ("before", "after")


def cases(seed: int) -> list[Case]:
    def case(part: str, replicas: int, stages: int) -> Case:
        return Case(part, 1, {"replicas": replicas, "stages": stages}, table(replicas, stages))

    def sizes(chance: Random) -> tuple[int, int]:
        return chance.randint(1, 6), chance.randint(1, 6)

    drawn = draw(sizes, 10, seed)
    parts = {
        "rows and columns": [(2, 3), (3, 2), (1, 2), (2, 1), (1, 1), *drawn[::2]],
        "neighbors": [(2, 4), (3, 1), (1, 3), (4, 2), *drawn[1::2]],
    }
    first = {size: part for part, given in reversed(parts.items()) for size in given}  # each case runs once
    return [case(part, *size) for part, given in parts.items() for size in dict.fromkeys(given) if first[size] == part]


def drive(answer, replicas: int, stages: int):
    def plain(value):
        if hasattr(value, "tolist"):  # a tensor or an array
            return value.tolist()
        return list(value) if isinstance(value, (tuple, range)) else value

    places = [dict(answer(rank, replicas, stages)) for rank in range(replicas * stages)]
    return [{name: plain(value) for name, value in place.items()} for place in places]


def judge(case: Case, values: list) -> str | None:
    names = GROUPS if case.part == "rows and columns" else NEIGHBORS
    for rank, right in enumerate(right_table(**case.inputs)):
        value = values[0][rank]
        for name in names:
            if name not in value:
                return f"rank {rank}: there is no {name!r}"
            difference = differs(value[name], right[name], name)
            if difference:
                return f"rank {rank}: {difference}"
    return None


def right_table(replicas: int, stages: int) -> list[dict]:
    return [place(rank, rank // stages, rank % stages, replicas, stages) for rank in range(replicas * stages)]


def place(rank: int, replica: int, stage: int, replicas: int, stages: int) -> dict:
    return {
        "row": [replica * stages + other for other in range(stages)],
        "column": [other * stages + stage for other in range(replicas)],
        "before": rank - 1 if stage > 0 else None,
        "after": rank + 1 if stage < stages - 1 else None,
    }


def are(case: Case, values: list, name: str, wanted: list[Any]) -> bool:
    """Return whether all ranks have the `wanted` values under this name, and not all of those are right."""
    found = [value.get(name) for value in values[0]]
    return found == wanted != [right[name] for right in right_table(**case.inputs)]


def rows_for_columns(case: Case, values: list) -> bool:
    """Row and column are swapped. A row is one replica, with all its stages; a column is one stage, in all replicas."""
    if min(case.inputs.values()) == 1:
        return False  # with one row or one column, other mistakes look the same
    right = right_table(**case.inputs)
    rows, columns = ([place[name] for place in right] for name in GROUPS)
    return are(case, values, "row", columns) and are(case, values, "column", rows)


def column_by_column(case: Case, values: list) -> bool:
    """You number the table column by column: that puts the stages of a replica far apart, on different nodes, although
    they communicate at every micro-batch. Number it row by row: neighboring ranks are neighboring stages.
    """
    replicas, stages = case.inputs.values()
    ranks = range(replicas * stages)
    rows = [list(range(rank % replicas, replicas * stages, replicas)) for rank in ranks]
    before = [rank - replicas if rank >= replicas else None for rank in ranks]
    return are(case, values, "row", rows) or are(case, values, "before", before)


def divides_by_the_replicas(case: Case, values: list) -> bool:
    """You divide the rank by the number of replicas. The length of a row is the number of *stages*: divide by that."""
    replicas, stages = case.inputs.values()
    ranks = range(replicas * stages)
    names = GROUPS if case.part == "rows and columns" else NEIGHBORS
    return replicas != stages and any(
        are(case, values, name, [place(rank, rank // replicas, rank % replicas, *size)[name] for rank in ranks])
        for name in names
        for size in ((replicas, stages), (stages, replicas))
    )


def leaves_itself_out(case: Case, values: list) -> bool:
    """A group includes all its ranks, even the calling rank: otherwise, it could not take part in the sum."""
    right = right_table(**case.inputs)
    others = {
        name: [[one for one in place[name] if one != rank] for rank, place in enumerate(right)] for name in GROUPS
    }
    return any(are(case, values, name, others[name]) for name in GROUPS)


def stages_and_replicas(case: Case, values: list) -> bool:
    """A group is a list of *ranks*, counted over the whole table. You list stage numbers or replica numbers."""
    replicas, stages = case.inputs.values()
    numbers = {"row": list(range(stages)), "column": list(range(replicas))}
    return any(are(case, values, name, [numbers[name]] * (replicas * stages)) for name in GROUPS)


def into_the_next_row(case: Case, values: list) -> bool:
    """You compute the neighbors from the rank alone: the last stage of a replica sends its outputs to the first stage
    of the next one. A replica ends where its row ends.
    """
    ranks = range(case.inputs["replicas"] * case.inputs["stages"])
    last = len(ranks) - 1
    return are(case, values, "after", [rank + 1 if rank < last else None for rank in ranks]) or are(
        case, values, "before", [rank - 1 if rank else None for rank in ranks]
    )


def round_and_round(case: Case, values: list) -> bool:
    """A pipeline is not a ring: there is no rank before the first stage or after the last. Return None there."""
    replicas, stages = case.inputs.values()
    rings = [[rank - rank % stages + (rank + step) % stages for rank in range(replicas * stages)] for step in (-1, 1)]
    return any(are(case, values, name, ring) for name, ring in zip(NEIGHBORS, rings, strict=True))


@observed
def nobody_is_none(case: Case, values: list) -> bool:
    """If there is no rank before or after, return None: any number would be taken for a rank."""
    wrong = wrong_neighbors(case, values)
    return bool(wrong) and all(right is None for _, _, right in wrong)


def rank_0_is_somebody(case: Case, values: list) -> bool:
    """Rank 0 is a rank like any other, but you treat it as missing: `0` is falsy. Test the stage, or use `is None`."""
    wrong = wrong_neighbors(case, values)
    return bool(wrong) and all(right == 0 and found is None for _, found, right in wrong)


def from_the_wrong_side(case: Case, values: list) -> bool:
    """Before and after are swapped: activations come from the stage with the smaller number."""
    right = right_table(**case.inputs)
    return are(case, values, "before", [place["after"] for place in right])


def wrong_neighbors(case: Case, values: list) -> list[tuple[str, Any, int | None]]:
    """Return the name, the value and the right value of each neighbor that is wrong."""
    if case.part != "neighbors":
        return []
    pairs = zip(values[0], right_table(**case.inputs), strict=True)
    found = [(name, value.get(name), right[name]) for value, right in pairs for name in NEIGHBORS]
    return [(name, value, right) for name, value, right in found if value != right]


EXERCISE = Exercise(
    **texts("07.1"),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=(
        divides_by_the_replicas,
        rows_for_columns,
        column_by_column,
        leaves_itself_out,
        stages_and_replicas,
        from_the_wrong_side,
        rank_0_is_somebody,
        into_the_next_row,
        round_and_round,
        nobody_is_none,
    ),
)
