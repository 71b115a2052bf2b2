"""Random legal schedules, for whatever must work with any of them.

What an action needs is written out here once more, so that the library's own rules are compared with something.
"""

from __future__ import annotations

from hypothesis import strategies as st

from course_lib.planning.schedules import Action, Schedule, Step

counts = st.integers(1, 3)


def rules(stages: int, micro_batches: int, chunks: int) -> dict[Step, set[Step]]:
    """Every step that there is to do, with those that it needs."""
    needs: dict[Step, set[Step]] = {}
    for stage in range(stages):
        for m in range(micro_batches):
            for c in range(chunks):
                forward, backward = (stage, Action("F", m, c)), (stage, Action("B", m, c))
                needs[forward] = {(stage - 1, Action("F", m, c))}
                needs[backward] = {forward, (stage + 1, Action("B", m, c)), (stage, Action("B", m, c + 1))}
                if c:
                    needs[forward].add((stage, Action("F", m, c - 1)))
    return {step: others & needs.keys() for step, others in needs.items()}


@st.composite
def legal_schedules(draw: st.DrawFn, stages=counts, micro_batches=counts, chunks=counts) -> Schedule:
    """Any order that one process could do all the work in, cut into the orders of the stages."""
    sizes = draw(stages), draw(micro_batches), draw(chunks)
    needs = rules(*sizes)
    waiting = draw(st.permutations(list(needs)))
    rows: list[list[Action]] = [[] for _ in range(sizes[0])]
    done: set[Step] = set()
    while waiting:
        step = next(step for step in waiting if needs[step] <= done)
        waiting.remove(step)
        done.add(step)
        rows[step[0]].append(step[1])
    return Schedule("random", tuple(map(tuple, rows)), *sizes[1:])
