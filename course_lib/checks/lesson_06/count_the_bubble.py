"""06.1 Count the bubble: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch

from course_lib.checks.exercise import Case, Exercise, same_as, seeded
from course_lib.planning.schedules import gpipe
from course_lib.planning.simulation import ActionCosts, simulate


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def seconds(least: int) -> float:
        return (least + torch.randint(8, (), generator=generator).item()) / 4

    def case(part: str, micro_batches: int, forward: list[float], backward: list[float]) -> Case:
        inputs = {"micro_batches": micro_batches, "forward": forward, "backward": backward}
        says = f"{micro_batches} micro-batches; seconds for the whole batch, forward {forward}, backward {backward}"
        return Case(part, 1, inputs, says)

    one, another = seconds(4), seconds(8)
    slow = [seconds(4), seconds(30), seconds(4)]
    return [
        case("equal stages", 4, [one] * 2, [another] * 2),
        case("equal stages", 8, [another] * 4, [another] * 4),
        case("a slow stage", 4, slow, [2 * time for time in slow]),
        case("a slow stage", 5, [*slow, slow[0]], [seconds(4), seconds(4), seconds(4), seconds(40)]),
    ]


def drive(answer, micro_batches: int, forward: list[float], backward: list[float]):
    makespan, bubble = answer(micro_batches, forward, backward)
    return {"makespan": float(makespan), "bubble": float(bubble)}


def expected(case: Case) -> list:
    forward, backward = case.inputs["forward"], case.inputs["backward"]
    schedule = gpipe(len(forward), case.inputs["micro_batches"])
    simulation = simulate(schedule, ActionCosts(forward, backward).split_over(schedule))
    return [{"makespan": simulation.makespan, "bubble": simulation.bubble}]


def pieces_as_long_as_the_batch(micro_batches, forward, backward):
    """You let every micro-batch take as long as the whole batch. The batch is cut: each piece takes its part of the
    time. (The share that is idle is not changed by this, the makespan is.)
    """
    makespan = sum(sum(costs) + (micro_batches - 1) * max(costs) for costs in (forward, backward))
    return makespan, 1 - micro_batches * sum(forward + backward) / (len(forward) * makespan)


def no_way_back(micro_batches, forward, backward):
    """You count the filling of the pipeline on the way forward, and not its emptying on the way back. The last
    micro-batch's gradient must come up through all stages, too.
    """
    makespan = (sum(forward) + (micro_batches - 1) * max(forward)) / micro_batches + max(backward)
    return makespan, 1 - sum(forward + backward) / (len(forward) * makespan)


def one_slot_too_many(micro_batches, forward, backward):
    """One slot too many in each direction: while the last stage works on the first micro-batch, only *stages - 1*
    slots have passed. Draw two stages and two micro-batches on paper, and count.
    """
    slots = micro_batches + len(forward)
    makespan = slots * (max(forward) + max(backward)) / micro_batches
    return makespan, 1 - sum(forward + backward) / (len(forward) * makespan)


def no_overlap(micro_batches, forward, backward):
    """This is the time of model parallelism, in which one stage works while the others wait. In a pipeline the next
    micro-batch enters a stage as soon as the one before has left it.
    """
    makespan = sum(forward + backward)
    return makespan, 1 - sum(forward + backward) / (len(forward) * makespan)


def idle_per_work(micro_batches, forward, backward):
    """The makespan is right. Your share is idle time over *working* time, (p-1)/m, which some papers call the bubble
    as well. Here it is the share of all the time, so that it can never pass 1.
    """
    pieces = ((sum(costs) + (micro_batches - 1) * max(costs)) / micro_batches for costs in (forward, backward))
    makespan = sum(pieces)
    return makespan, len(forward) * makespan / sum(forward + backward) - 1


def average_stage(micro_batches, forward, backward):
    """You calculate with the mean stage. A pipeline moves at the pace of its slowest one: the others wait for it at
    every micro-batch.
    """
    slots = micro_batches + len(forward) - 1
    makespan = slots * sum(forward + backward) / len(forward) / micro_batches
    return makespan, 1 - sum(forward + backward) / (len(forward) * makespan)


def all_as_slow_as_the_slowest(micro_batches, forward, backward):
    """Too long: you let every stage take as long as the slowest. One micro-batch passes each stage once, at that
    stage's own pace; only the other *micro_batches - 1* queue at the slowest.
    """
    slots = micro_batches + len(forward) - 1
    makespan = slots * (max(forward) + max(backward)) / micro_batches
    return makespan, 1 - sum(forward + backward) / (len(forward) * makespan)


EXERCISE = Exercise(
    number="06.1",
    title="Count the bubble",
    answer="step_time",
    level="warm-up",
    minutes=10,
    parts={"equal stages": 2, "a slow stage": 1},
    read="1 · The bubble",
    hints=(
        "How long does one micro-batch take on a stage, if the whole batch takes `forward[stage]`?",
        "Follow the first micro-batch through all stages: that is a sum over the stages. When is the last one through, "
        "if each comes one slot behind the one before? What is a slot, where one stage is slower than the others?",
        "All backward passes come after all forward passes, so that the two makespans add up. Each stage works for "
        "`forward[stage] + backward[stage]`; all of them together have `stages * makespan`.",
    ),
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        pieces_as_long_as_the_batch,
        no_way_back,
        one_slot_too_many,
        no_overlap,
        idle_per_work,
        average_stage,
        all_as_slow_as_the_slowest,
    ),
)
