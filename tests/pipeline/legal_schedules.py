"""Random legal schedules, for whatever must work with any of them.

What an action needs is written out here once more, so that the library's own rules are compared with something.
"""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from course_lib.pipeline.actions import Action, Step
from course_lib.pipeline.schedule import Schedule

counts = st.integers(1, 3)
few, one_part, none = st.integers(1, 2), st.just(1), st.just(0.0)
shares = st.sampled_from([0.0, 0.5, 1.0])
layouts = st.sampled_from(["loop", "v"])

Apart = set[tuple[int, Action]]  # the backward passes that are split, or the forward passes that are made again


def where(position: int, stages: int, layout: str) -> tuple[int, int]:
    """(stage, virtual stage) of a part of the model: round and round, or to and fro."""
    to_and_fro = [*range(stages), *reversed(range(stages))] if layout == "v" else list(range(stages)) * 2
    return to_and_fro[position % (2 * stages)], position // stages


def rules(
    stages: int,
    micro_batches: int,
    chunks: int,
    virtual: int = 1,
    layout: str = "loop",
    split: Apart | None = None,
    recomputed: Apart | None = None,
) -> dict[Step, set[Step]]:
    """Every step that there is to do, with those that it needs. `split` names backwards, `recomputed` forwards."""

    def step(kind: str, position: int, m: int, c: int) -> Step | None:
        if not 0 <= position < stages * virtual or not 0 <= c < chunks:
            return None
        stage, v = where(position, stages, layout)
        return stage, Action(kind, m, c, v)

    needs: dict[Step, set[Step | None]] = {}
    for position in range(stages * virtual):
        for m in range(micro_batches):
            for c in range(chunks):
                forward, backward = step("F", position, m, c), step("B", position, m, c)
                assert forward
                assert backward
                needs[forward] = {step("F", position - 1, m, c), step("F", position, m, c - 1)}
                needs[backward] = {forward, step("B", position + 1, m, c), step("B", position, m, c + 1)}
                if backward in (split or ()):
                    needs[backward[0], Action("W", *backward[1].piece)] = {backward}
                if forward in (recomputed or ()):
                    again = forward[0], Action("R", *forward[1].piece)
                    needs[again] = {forward}
                    needs[backward].add(again)
    return {one: {other for other in others if other} for one, others in needs.items()}


def rules_of(schedule: Schedule) -> dict[Step, set[Step]]:
    """The rules for the work of this schedule, with as many split and repeated passes as it has."""
    steps = [(stage, action) for stage, row in enumerate(schedule.stages) for action in row]
    split, recomputed = (
        {(stage, Action(of, *action.piece)) for stage, action in steps if action.kind == kind}
        for kind, of in (("W", "B"), ("R", "F"))
    )
    sizes = (len(schedule.stages), schedule.micro_batches, schedule.chunks, schedule.virtual, schedule.layout)
    return rules(*sizes, split, recomputed)


@st.composite
def legal_schedules(
    draw: st.DrawFn,
    stages=counts,
    micro_batches=counts,
    chunks=counts,
    virtual=one_part,
    layout=layouts,
    split=none,
    recompute=none,
) -> Schedule:
    """Any order that one process could do all the work in, cut into the orders of the stages.

    `split` and `recompute` draw which share of the backward passes is split, and of the forward passes made again.
    """
    sizes = draw(stages), draw(micro_batches), draw(chunks), draw(virtual)
    style, apart, again = draw(layout) if sizes[3] > 1 else "loop", draw(split), draw(recompute)
    chance = Random(draw(st.integers(0, 2**32 - 1)))  # orders are too many to be drawn one by one
    whole = rules(*sizes, style)
    needs = rules(
        *sizes,
        style,
        {step for step in whole if step[1].kind == "B" and chance.random() < apart},
        {step for step in whole if step[1].kind == "F" and chance.random() < again},
    )
    waiting = chance.sample(list(needs), len(needs))
    rows: list[list[Action]] = [[] for _ in range(sizes[0])]
    done: set[Step] = set()
    while waiting:
        step = next(step for step in waiting if needs[step] <= done)
        waiting.remove(step)
        done.add(step)
        rows[step[0]].append(step[1])
    return Schedule("random", tuple(map(tuple, rows)), *sizes[1:], style)


def any_legal_schedules(stages=counts, micro_batches=counts, chunks=few, virtual=counts) -> st.SearchStrategy[Schedule]:
    """Schedules with virtual stages, split backward passes and recomputation too."""
    return legal_schedules(stages, micro_batches, chunks, virtual, split=shares, recompute=shares)
