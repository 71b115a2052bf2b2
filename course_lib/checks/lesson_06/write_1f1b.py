"""06.2 Write 1F1B: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

from itertools import chain, zip_longest

import torch

from course_lib.checks.exercise import Case, Exercise, seeded
from course_lib.planning.schedules import IllegalSchedule, Schedule
from course_lib.planning.simulation import simulate


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, stages: int, micro_batches: int, most: int) -> Case:
        inputs = {"stages": stages, "micro_batches": micro_batches, "most": most}
        return Case(part, 1, inputs, f"{stages} stages, {micro_batches} micro-batches, most={most}")

    more = torch.randint(3, (4,), generator=generator).tolist()
    return [
        case("it can run", 2, 3 + more[0], 2),
        case("it can run", 4 + more[1], 2, 4 + more[1]),
        case("as fast as GPipe", 3, 5 + more[2], 3),
        case("less memory than GPipe", 4, 6 + more[2], 4),
        case("a limit on memory", 5, 6 + more[3], 2),
    ]


def drive(answer, stages: int, micro_batches: int, most: int):
    return [list(answer(stage, stages, micro_batches, most)) for stage in range(stages)]


def judge(case: Case, values: list) -> str | None:
    stages, micro_batches, most = case.inputs.values()
    possible = {f"{kind}{number}" for kind in "FB" for number in range(micro_batches)}
    for stage, actions in enumerate(values[0]):
        if not possible.issuperset(actions):
            strange = next(action for action in actions if action not in possible)
            return (
                f"stage {stage} does {strange!r}: there are F0 to F{micro_batches - 1} and B0 to B{micro_batches - 1}"
            )
    try:
        schedule = Schedule.of(values[0])
    except IllegalSchedule as error:
        return str(error)
    if case.part == "it can run":
        return None
    makespan = simulate(schedule).makespan
    quickest = simulate(Schedule.of([turns(s, stages, micro_batches, most) for s in range(stages)])).makespan
    if makespan > quickest:
        shown = " | ".join(map(" ".join, values[0]))
        return f"it takes {makespan:g} slots where {quickest:g} are enough: {shown}"
    if case.part == "as fast as GPipe":
        return None
    for stage, held in enumerate(schedule.peak):
        if held > min(most, stages - stage):
            return f"stage {stage} holds {held} micro-batches at once, {min(most, stages - stage)} are enough"
    return None


def turns(stage: int, stages: int, micro_batches: int, most: int) -> list[str]:
    """The first forwards, as many as are needed and allowed; then a backward and a forward in turn."""
    return taking_turns(micro_batches, min(most, stages - stage))


def taking_turns(micro_batches: int, ahead: int) -> list[str]:
    forwards = [f"F{number}" for number in range(micro_batches)]
    backwards = [f"B{number}" for number in range(micro_batches)]
    pairs = zip_longest(backwards, forwards[ahead:], fillvalue="")
    return [action for action in chain(forwards[:ahead], *pairs) if action]


def all_forwards_first(stage, stages, micro_batches, most):
    """This is GPipe: legal, as fast as 1F1B, and every stage holds every micro-batch. Go back as soon as a micro-batch
    can: its activations are then free.
    """
    return taking_turns(micro_batches, micro_batches)


def one_at_a_time(stage, stages, micro_batches, most):
    """Each micro-batch goes forward and back before the next one starts: while it is away, the stage has nothing to do.
    Let a stage begin with as many forwards as it takes for the first one to come back.
    """
    return taking_turns(micro_batches, 1)


def warm_up_one_short(stage, stages, micro_batches, most):
    """The stages start with one forward too few: stage s waits a slot or two at its first backward, and at every one
    after it. The first micro-batch has stages - s stages to visit, this one included.
    """
    return taking_turns(micro_batches, max(1, min(most, stages - stage - 1)))


def backward_before_forward(stage, stages, micro_batches, most):
    """The last stage begins with a backward, of a micro-batch that it has not seen. If a stage starts with
    stages - s - 1 forwards, its turns are a *forward* and a backward, in this order.
    """
    return taking_turns(micro_batches, min(most, stages - stage) - 1)


def warm_up_one_long(stage, stages, micro_batches, most):
    """Legal and fast, but the stages start with one forward more than they need, and hold its activations to the end.
    The last stage can go back at once: it needs one.
    """
    return taking_turns(micro_batches, stages - stage + 1)


def the_same_everywhere(stage, stages, micro_batches, most):
    """All stages start with as many forwards as stage 0. The later a stage comes, the sooner it can go back, and
    the stages before it wait for that: how far ahead a stage must go depends on its place.
    """
    return taking_turns(micro_batches, stages)


def the_wrong_way_round(stage, stages, micro_batches, most):
    """The last stage goes furthest ahead, and the first waits with its first backward: each waits for the other. The
    *first* stage's micro-batches have the longest way to go, so that it starts with the most forwards.
    """
    return taking_turns(micro_batches, stage + 1)


def newest_first(stage, stages, micro_batches, most):
    """After the first forwards you go back with the *newest* micro-batch. The oldest is back first; the newest must
    first pass all the stages behind, and everybody waits for it.
    """
    ahead, held, actions = min(most, stages - stage), [], []
    for number in range(micro_batches):
        actions.append(f"F{number}")
        held.append(number)
        if len(held) >= ahead:
            actions.append(f"B{held.pop()}")
    return actions + [f"B{number}" for number in reversed(held)]


def never_empties(stage, stages, micro_batches, most):
    """The forwards are all there, and the last backwards are missing: when no forward is left to take turns with, the
    rest of the backwards must still be done. Their gradients would be lost.
    """
    ahead = min(most, stages - stage)
    return taking_turns(micro_batches, ahead)[: 2 * micro_batches - ahead]


def more_than_there_are(stage, stages, micro_batches, most):
    """With fewer micro-batches than stages, you start with forwards of micro-batches that do not exist. There are only
    so many to start with.
    """
    ahead = min(most, stages - stage)
    rest = taking_turns(micro_batches, ahead)[min(ahead, micro_batches) :]
    return [f"F{number}" for number in range(ahead)] + rest


def ignores_the_limit(stage, stages, micro_batches, most):
    """This is 1F1B as it should be where there is memory enough. With `most` below the number of stages, the first
    stages must start with fewer forwards, and the pipeline gets slower: that is the price.
    """
    return taking_turns(micro_batches, stages - stage)


EXERCISE = Exercise(
    number="06.2",
    title="Write 1F1B",
    answer="my_actions",
    level="build",
    minutes=30,
    parts={"it can run": 2, "as fast as GPipe": 2, "less memory than GPipe": 2, "a limit on memory": 2},
    read="2 · 1F1B: the same time, less memory",
    hints=(
        "Begin on paper with 2 stages and 3 micro-batches. What does the last stage do? What does the first one do "
        "until the first gradient is back?",
        "A stage has three phases: some forwards; a backward and a forward in turn; the backwards that are left. Only "
        "the length of the first phase depends on the stage.",
        "The last stage can go back after one forward, the one before it after two. With a limit, no more than `most`; "
        "and there may be fewer micro-batches than that.",
        "`pictures.schedule(Schedule.of([...]))`, with `Schedule` from `course_lib.planning`, draws what all your "
        "stages do together, or says why they cannot.",
    ),
    cases=cases,
    drive=drive,
    judge=judge,
    mistakes=(
        all_forwards_first,
        one_at_a_time,
        warm_up_one_short,
        backward_before_forward,
        warm_up_one_long,
        the_same_everywhere,
        the_wrong_way_round,
        newest_first,
        never_empties,
        more_than_there_are,
        ignores_the_limit,
    ),
)
