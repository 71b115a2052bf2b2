"""06.1 Count the bubble: the check, and the common mistakes it recognizes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import torch

from course_lib.checks.exercise import Case, Cost, Exercise, differs, draw, seeded
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import observed

FEW, MANY = 3, 60  # numbers of micro-batches, to see whether the work grows with them
GROWTH = 2
HUGE = 10**15  # no loop over this many ever ends, and no array of this many fits in memory


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def seconds(least: int) -> float:
        return (least + torch.randint(8, (), generator=generator).item()) / 4

    def case(part: str, micro_batches: int, forward: list[float], backward: list[float], counted=False) -> Case:
        inputs = {"micro_batches": micro_batches, "forward": forward, "backward": backward, "counted": counted}
        says = f"{micro_batches} micro-batches; seconds for the whole batch, forward {forward}, backward {backward}"
        return Case(part, 1, inputs, says)

    def stages(chance: Random) -> tuple[int, list[list[float]]]:
        count = chance.randint(2, 6)
        return chance.randint(1, 12), [[chance.randint(1, 40) / 4 for _ in range(count)] for _ in range(2)]

    one, another, slow = seconds(4), seconds(8), [seconds(4), seconds(30), seconds(4)]
    return [
        case("equal stages", 4, [one] * 3, [another] * 3),
        case("equal stages", 8, [another] * 4, [another] * 4),
        case("equal stages", 1, [one] * 3, [another] * 3),
        case("equal stages", 5, [one], [another]),
        case("equal stages", 6, [one] * 3, [another] * 3, counted=True),
        case("a slow stage", 4, slow, [2 * time for time in slow]),
        case("a slow stage", 5, [*slow, slow[0]], [seconds(4), seconds(4), seconds(40), seconds(4)]),
        *(case("a slow stage", pieces, forward, backward) for pieces, (forward, backward) in draw(stages, 8, seed)),
        case("a slow stage", 3, slow, [seconds(40), seconds(4), seconds(4)], counted=True),
    ]


def drive(answer, micro_batches: int, forward: list[float], backward: list[float], counted: bool):
    makespan, bubble = answer(micro_batches, list(forward), list(backward))
    slower, _ = answer(micro_batches, [2 * time for time in forward], [2 * time for time in backward])
    seen: dict[str, float | str] = {"makespan": float(makespan), "bubble": float(bubble), "slower": float(slower)}
    if counted:
        others = [3 * time for time in forward], [3 * time for time in backward]  # new: the answer may cache results
        answer(FEW + 1, *others)  # a warm-up call, so that imports are not counted
        few, many = (instructions(answer, pieces, *others) for pieces in (FEW, MANY))
        seen |= {str(FEW): few, str(MANY): many}
        if many <= GROWTH * few:  # instructions inside numpy are not counted
            seen["huge"] = with_very_many(answer, forward, backward)
    return seen


def with_very_many(answer, forward: list[float], backward: list[float]):
    """Return the makespan of very many micro-batches, or the name of the exception."""
    try:
        return float(answer(HUGE, list(forward), list(backward))[0])
    except Exception as error:
        return type(error).__name__


def instructions(answer, micro_batches: int, forward: list[float], backward: list[float]) -> int:
    """Return how many Python instructions a call executes: a measure of work that is the same on every machine."""
    import sys

    count = 0

    def note(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        answer(micro_batches, list(forward), list(backward))
    finally:
        sys.settrace(before)
    return count


def judge(case: Case, values: list) -> str | None:
    difference = differs({name: values[0][name] for name in ("makespan", "bubble")}, expected(case))
    difference = difference or differs(
        values[0]["slower"], 2 * expected(case)["makespan"], "in a second call, with stages twice as slow, the makespan"
    )
    huge = values[0].get("huge")
    if difference or huge is None:
        return difference
    if isinstance(huge, str):
        return f"for {HUGE:.0e} micro-batches it raised {huge}"
    very_many = replace(case, inputs={**case.inputs, "micro_batches": HUGE})
    return differs(huge, expected(very_many)["makespan"], f"for {HUGE:.0e} micro-batches, the makespan")


def costs(case: Case, values: list) -> list[Cost]:
    if not case.inputs["counted"]:
        return []
    few, many = values[0][str(FEW)], values[0][str(MANY)]
    return [
        Cost(f"instructions for {MANY} micro-batches (budget: {GROWTH:g} times those for {FEW})", many, GROWTH * few)
    ]


def expected(case: Case) -> dict[str, float]:
    pieces, forward, backward = sizes(case)
    makespan = sum((sum(times) + (pieces - 1) * max(times)) / pieces for times in (forward, backward))
    return {"makespan": makespan, "bubble": 1 - sum(forward + backward) / (len(forward) * makespan)}


def sizes(case: Case) -> tuple[int, list[float], list[float]]:
    return case.inputs["micro_batches"], case.inputs["forward"], case.inputs["backward"]


def near(value: float, *others: float) -> bool:
    return any(abs(value - other) <= 1e-5 * max(abs(other), 1e-3) for other in others)


def makespan_is_right(case: Case, values: list) -> bool:
    return near(values[0]["makespan"], expected(case)["makespan"])


@observed
def answers_from_memory(case: Case, values: list) -> bool:
    """The first result is right, but the second call returns the same one, although the stages are slower: something is
    kept between calls, under a key that has only the sizes. A cache key must contain *all* arguments.
    """
    return makespan_is_right(case, values) and near(values[0]["slower"], values[0]["makespan"])


def grows_with_the_micro_batches(case: Case, values: list) -> bool:
    """The work your function does should not grow with the micro-batches, but it loops over them one by one, like a
    simulation. Every micro-batch but the first is one slot behind the previous one: `micro_batches - 1` slots, one
    multiplication.
    """
    return judge(case, values) is None and values[0][str(MANY)] > GROWTH * values[0][str(FEW)]


@observed
def grows_in_an_array(case: Case, values: list) -> bool:
    """The work your function does grows with the micro-batches, in an array or a list with an item for each. Every
    micro-batch but the first is one slot behind the previous one: `micro_batches - 1` slots, one multiplication.
    """
    return values[0].get("huge") in ("MemoryError", "_ArrayMemoryError", "RuntimeError", "OverflowError", "ValueError")


def in_the_other_order(case: Case, values: list) -> bool:
    """The makespan comes first, then the bubble: you return them in the opposite order."""
    right = expected(case)
    return near(values[0]["makespan"], right["bubble"]) and near(values[0]["bubble"], right["makespan"])


def pieces_as_long_as_the_batch(case: Case, values: list) -> bool:
    """You let every micro-batch take as long as the whole batch. The batch is split: each micro-batch takes its share
    of the time. (This doesn't change the idle share, but it does change the makespan.)
    """
    pieces = case.inputs["micro_batches"]
    return pieces > 1 and near(values[0]["makespan"], pieces * expected(case)["makespan"])


def no_overlap(case: Case, values: list) -> bool:
    """This is the time of model parallelism, where one stage works while the others wait. In a pipeline, the next
    micro-batch enters a stage as soon as the previous one has left it.
    """
    pieces, forward, backward = sizes(case)
    return pieces > 1 and len(forward) > 1 and near(values[0]["makespan"], sum(forward + backward))


def idle_per_work(case: Case, values: list) -> bool:
    """The makespan is right. Your bubble is idle time over *working* time, (p-1)/m, which some papers also call the
    bubble. Here it is the share of the total time, so it can never exceed 1.
    """
    bubble = expected(case)["bubble"]
    return makespan_is_right(case, values) and near(values[0]["bubble"], bubble / (1 - bubble))


def in_percent(case: Case, values: list) -> bool:
    """The makespan is right, but your bubble is in percent. Return a fraction from 0 to 1."""
    return makespan_is_right(case, values) and near(values[0]["bubble"], 100 * expected(case)["bubble"])


def share_of_work(case: Case, values: list) -> bool:
    """The makespan is right. The second number you return is the share of time in which the stages *work*: the bubble
    is the rest.
    """
    return makespan_is_right(case, values) and near(values[0]["bubble"], 1 - expected(case)["bubble"])


def idle_seconds(case: Case, values: list) -> bool:
    """The makespan is right. The second number you return is the *time* in which stages are idle, for one stage or for
    all of them. The bubble is its share of stages * makespan.
    """
    right, (_, forward, backward) = expected(case), sizes(case)
    idle = right["bubble"] * right["makespan"]
    stages = [right["makespan"] - f - b for f, b in zip(forward, backward, strict=True)]
    return makespan_is_right(case, values) and near(values[0]["bubble"], idle, len(forward) * idle, *stages)


def bubble_of_equal_stages(case: Case, values: list) -> bool:
    """The makespan is right. Your bubble is (p-1)/(m+p-1), which holds only if all stages are equal. In general: what
    share of stages * makespan is not work?
    """
    pieces, stages = case.inputs["micro_batches"], len(case.inputs["forward"])
    differ = not near(values[0]["bubble"], expected(case)["bubble"])
    return (
        makespan_is_right(case, values) and differ and near(values[0]["bubble"], (stages - 1) / (pieces + stages - 1))
    )


def not_the_slowest(case: Case, values: list) -> bool:
    """You use one pace for all stages: their mean, or that of a stage that is not the slowest. A pipeline moves at the
    pace of its slowest stage: the others wait for it at every micro-batch.
    """
    pieces, forward, backward = sizes(case)
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    paces = [*both, sum(both) / len(both), min(forward) + min(backward)]
    slots = (pieces + len(forward) - 1) / pieces
    return len(set(both)) > 1 and near(values[0]["makespan"], *(slots * pace for pace in paces if pace < slowest(case)))


def all_as_slow_as_the_slowest(case: Case, values: list) -> bool:
    """Too long: you let every stage take as long as the slowest. A micro-batch goes through each stage once, at that
    stage's pace; only the other *micro_batches - 1* queue at the slowest.
    """
    pieces, forward, _ = sizes(case)
    slots = (pieces + len(forward) - 1) / pieces
    return not makespan_is_right(case, values) and near(values[0]["makespan"], slots * slowest(case))


def slowest(case: Case) -> float:
    return max(case.inputs["forward"]) + max(case.inputs["backward"])


def slowest_of_both_together(case: Case, values: list) -> bool:
    """The slowest stage in the forward pass and the slowest in the backward pass need not be the same stage: find the
    slowest separately for each pass.
    """
    pieces, forward, backward = sizes(case)
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    slots = (pieces + len(both) - 1) / pieces
    paces = (sum(both) + (pieces - 1) * max(both)) / pieces, slots * max(both)
    inside = max(both) not in (both[0], both[-1])  # at an end, `paced_by_an_end` would match, too
    return inside and max(both) < slowest(case) and near(values[0]["makespan"], *paces)


def paced_by_an_end(case: Case, values: list) -> bool:
    """You let the micro-batches follow one another at the pace of the first stage, or of the last. They queue at the
    *slowest* stage, which may be any of them: find it separately for each pass.
    """
    pieces, forward, backward = sizes(case)
    ends = {forward[place] + backward[place] for place in (0, -1)} - {slowest(case)}
    inside = max(f + b for f, b in zip(forward, backward, strict=True)) not in ends
    return inside and near(
        values[0]["makespan"], *((sum(forward + backward) + (pieces - 1) * end) / pieces for end in ends)
    )


def leaves_out_the_last_stage(case: Case, values: list) -> bool:
    """You add the slowest stage to all stages but the last, as if the last one were the slowest. Leave out the
    *slowest* stage itself: a micro-batch goes through each of the others once.
    """
    pieces, forward, backward = sizes(case)
    way_in, way_back = (
        [max(times) + (sum(times) - left_out) / pieces for left_out in (times[0], times[-1])]
        for times in (forward, backward)
    )
    right = expected(case)["makespan"]
    wrong = [one + other for one in way_in for other in way_back if not near(one + other, right)]
    return near(values[0]["makespan"], *wrong)


def one_way_alone(case: Case, values: list) -> bool:
    """You count filling the pipeline in the forward pass but not draining it in the backward pass, or vice versa. The
    last micro-batch's gradient must also travel back through all stages.
    """
    pieces, forward, backward = sizes(case)
    edges = [(sum(times) - max(times)) / pieces for times in (forward, backward)]
    alone = [expected(case)["makespan"] - edge for edge in edges if edge > 0]
    return near(values[0]["makespan"], *alone)


def one_slot_too_many(case: Case, values: list) -> bool:
    """One slot too many: when the last stage starts on the first micro-batch, only *stages - 1* slots have passed. Draw
    two stages and two micro-batches on paper, and count.
    """
    pieces, forward, backward = sizes(case)
    extra = [max(forward) / pieces, max(backward) / pieces, slowest(case) / pieces]
    return near(values[0]["makespan"], *(expected(case)["makespan"] + slot for slot in extra))


EXERCISE = Exercise(
    **texts("06.1"),
    cases=cases,
    drive=drive,
    judge=judge,
    costs=costs,
    symptoms=(
        answers_from_memory,
        grows_with_the_micro_batches,
        grows_in_an_array,
        in_the_other_order,
        pieces_as_long_as_the_batch,
        no_overlap,
        in_percent,
        idle_per_work,
        share_of_work,
        idle_seconds,
        bubble_of_equal_stages,
        not_the_slowest,
        slowest_of_both_together,
        paced_by_an_end,
        leaves_out_the_last_stage,
        all_as_slow_as_the_slowest,
        one_way_alone,
        one_slot_too_many,
    ),
)
