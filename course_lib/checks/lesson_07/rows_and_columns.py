"""07.1 Rows and columns: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch

from course_lib.checks.exercise import Case, Exercise, seeded


def cases(seed: int) -> list[Case]:
    more = int(torch.randint(2, (), generator=seeded(seed)))

    def case(part: str, replicas: int, stages: int) -> Case:
        return Case(part, 1, {"replicas": replicas, "stages": stages}, f"{replicas} replicas of {stages} stages")

    return [
        case("rows and columns", 2, 3),
        case("rows and columns", 3 + more, 2),
        case("neighbours", 2, 3 + more),
        case("neighbours", 3, 1),
    ]


def drive(answer, replicas: int, stages: int):
    return [dict(answer(rank, replicas, stages)) for rank in range(replicas * stages)]


def judge(case: Case, values: list) -> str | None:
    names = ["row", "column"] if case.part == "rows and columns" else ["before", "after"]
    for rank, right in enumerate(right_table(**case.inputs)):
        value = values[0][rank]
        for name in names:
            if name not in value or value[name] != right[name]:
                return f"rank {rank}: {name} is {value.get(name)}, it should be {right[name]}"
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


def rows_for_columns(rank, replicas, stages):
    """Row and column are exchanged. A row is one replica, with all its stages; a column is one stage, in all of the
    replicas.
    """
    right = place(rank, rank // stages, rank % stages, replicas, stages)
    return {**right, "row": right["column"], "column": right["row"]}


def column_by_column(rank, replicas, stages):
    """You number the table column by column: the stages of a replica are then far apart, on other nodes, and they talk
    at every micro-batch. Number it row by row: neighbouring ranks are neighbouring stages.
    """
    right = place(rank, rank % replicas, rank // replicas, replicas, stages)
    return {
        **right,
        "row": [stage * replicas + rank % replicas for stage in range(stages)],
        "column": [rank // replicas * replicas + replica for replica in range(replicas)],
    }


def divides_by_the_replicas(rank, replicas, stages):
    """You divide the rank by the number of replicas. A row is as long as there are *stages*: that is the number to
    divide by.
    """
    return place(rank, rank // replicas, rank % replicas, replicas, stages)


def leaves_itself_out(rank, replicas, stages):
    """A group has all its ranks, also the one that asks: without it, the rank could not take part in the sum."""
    right = place(rank, rank // stages, rank % stages, replicas, stages)
    return {**right, **{name: [other for other in right[name] if other != rank] for name in ("row", "column")}}


def into_the_next_row(rank, replicas, stages):
    """The neighbours are taken from the rank alone: the last stage of a replica sends its outputs to the first stage of
    the next one. A replica ends at its row's end.
    """
    right = place(rank, rank // stages, rank % stages, replicas, stages)
    after = rank + 1 if rank + 1 < replicas * stages else None
    return {**right, "before": rank - 1 if rank else None, "after": after}


def round_and_round(rank, replicas, stages):
    """A pipeline is no ring: before the first stage and after the last there is nobody. Return None there."""
    right = place(rank, rank // stages, rank % stages, replicas, stages)
    start, stage = rank - rank % stages, rank % stages
    return {**right, "before": start + (stage - 1) % stages, "after": start + (stage + 1) % stages}


EXERCISE = Exercise(
    number="07.1",
    title="Rows and columns",
    answer="my_place",
    level="warm-up",
    minutes=10,
    parts={"rows and columns": 2, "neighbours": 1},
    read="1 · A table of ranks",
    hints=(
        "Write the table of 2 replicas and 3 stages on paper, row by row. In which row and column is rank 4?",
        "`divmod(rank, stages)`.",
        "The row of replica r begins at rank r * stages. The column of stage s has every stages-th rank, from s on.",
    ),
    cases=cases,
    drive=drive,
    judge=judge,
    mistakes=(
        rows_for_columns,
        column_by_column,
        divides_by_the_replicas,
        leaves_itself_out,
        into_the_next_row,
        round_and_round,
    ),
)
