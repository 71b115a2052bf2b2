"""06.2 Write 1F1B: the check, and the common mistakes it recognizes."""

from __future__ import annotations

from itertools import chain, pairwise, zip_longest
from random import Random

from course_lib.checks.exercise import Case, Exercise, draw
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import observed
from course_lib.pipeline.actions import Action, IllegalSchedule, peak_held
from course_lib.pipeline.schedule import Schedule, check
from course_lib.pipeline.simulation import simulate


def cases(seed: int) -> list[Case]:
    def case(part: str, stages: int, micro_batches: int, most: int) -> Case:
        inputs = {"stages": stages, "micro_batches": micro_batches, "most": most}
        says = (
            f"{stages} stage{'s' * (stages > 1)}, {micro_batches} micro-batch{'es' * (micro_batches > 1)}, most={most}"
        )
        return Case(part, 1, inputs, says)

    def sizes(chance: Random) -> tuple[int, int, int]:
        return chance.randint(1, 6), chance.randint(1, 9), chance.randint(1, 6)

    limited = draw(sizes, 12, seed)
    roomy = [(stages, pieces, stages + most) for stages, pieces, most in draw(sizes, 8, seed + 1)]
    parts = {
        "it can run": [(2, 3, 2), (1, 2, 1), (3, 1, 3), (5, 2, 5), (4, 6, 2), (3, 12, 3), *limited[:6]],
        "as fast as GPipe": [(3, 5, 3), (2, 4, 2), (4, 4, 9), (4, 2, 4), *roomy[:4]],
        "less memory than GPipe": [(3, 6, 3), (2, 5, 2), (4, 7, 4), (3, 9, 5), *roomy[4:]],
        "a limit on memory": [(3, 4, 2), (5, 7, 2), (4, 5, 1), (6, 8, 4), (5, 3, 4), (2, 5, 7), *limited[6:]],
    }
    first = {each: part for part, given in reversed(parts.items()) for each in given}  # each case runs once
    return [case(part, *each) for part, given in parts.items() for each in given if first[each] == part]


def drive(answer, stages: int, micro_batches: int, most: int):
    return [list(answer(stage, stages, micro_batches, most)) for stage in range(stages)]


def judge(case: Case, values: list) -> str | None:
    stages, micro_batches, most = case.inputs.values()
    rows = values[0]
    if len(rows) != stages:
        return f"there are lists for {len(rows)} stages; there should be {stages}"
    for stage, row in enumerate(rows):
        strange = strange_action(row, micro_batches)
        if strange is not None:
            last = micro_batches - 1
            there = f"F0 to F{last} and B0 to B{last}" if last else "only F0 and B0"
            return f"stage {stage} does {strange!r}: the actions are {there}"
    schedule = Schedule("yours", tuple(tuple(map(Action.of, row)) for row in rows), micro_batches)
    try:
        check(schedule)
    except IllegalSchedule as error:
        return str(error)
    if case.part == "it can run":
        return None
    return too_slow(schedule, most) or (None if case.part == "as fast as GPipe" else holds_too_much(schedule, most))


def strange_action(row: list, micro_batches: int) -> object:
    """Return the first entry that is not an action of a schedule with `micro_batches` micro-batches, or None."""
    possible = {f"{kind}{number}" for kind in "FB" for number in range(micro_batches)}
    return next((action for action in row if not isinstance(action, str) or action not in possible), None)


def too_slow(schedule: Schedule, most: int) -> str | None:
    stages = len(schedule.stages)
    ours = Schedule.of([turns(stage, stages, schedule.micro_batches, most) for stage in range(stages)])
    makespan, enough = simulate(schedule).makespan, simulate(ours).makespan
    shown = " | ".join(" ".join(map(str, row)) for row in schedule.stages)
    return f"it takes {makespan:g} slots where {enough:g} are enough: {shown}" if makespan > enough else None


def holds_too_much(schedule: Schedule, most: int) -> str | None:
    for stage, held in enumerate(schedule.peak):
        allowed = min(most, len(schedule.stages) - stage)
        if held > allowed:
            return f"stage {stage} holds {held} micro-batches at once, but may hold only {allowed}"
    return None


def turns(stage: int, stages: int, micro_batches: int, most: int) -> list[str]:
    """Return one stage's actions: as many forwards as are needed and allowed, then one backward, one forward, and so
    on.
    """
    return taking_turns(micro_batches, min(most, stages - stage))


def taking_turns(micro_batches: int, ahead: int) -> list[str]:
    forwards = [f"F{number}" for number in range(micro_batches)]
    backwards = [f"B{number}" for number in range(micro_batches)]
    pairs = zip_longest(backwards, forwards[ahead:], fillvalue="")
    return [action for action in chain(forwards[:ahead], *pairs) if action]


def rows_of(values: list) -> list[list[Action]]:
    return [list(map(Action.of, row)) for row in values[0]]


def first_forwards(row: list[Action]) -> int:
    """Return how many forwards a stage starts with."""
    return next((place for place, action in enumerate(row) if action.kind == "B"), len(row))


def needed(case: Case) -> list[int]:
    """Return how many forwards each stage starts with in 1F1B."""
    stages, micro_batches, most = case.inputs.values()
    return [min(stages - stage, most, micro_batches) for stage in range(stages)]


@observed
def not_a_list_of_texts(case: Case, values: list) -> bool:
    """An action is a string such as "F0", and the result for a stage is a list of them."""
    return any(not isinstance(action, str) or len(action) < 2 for row in values[0] for action in row)


@observed
def goes_on_with_the_last_list(case: Case, values: list) -> bool:
    """Each stage's list begins with all of the previous stage's actions: the list is kept from one call to the next, as
    a default argument such as `actions=[]` is. Make a new list in every call.
    """
    pairs = list(pairwise(values[0]))
    return bool(pairs) and all(len(row) > len(last) and row[: len(last)] == last for last, row in pairs)


@observed
def counts_from_one(case: Case, values: list) -> bool:
    """You number the micro-batches from 1. They are counted from 0: the first is `F0`."""
    return all(f"F{case.inputs['micro_batches']}" in row and "F0" not in row for row in values[0])


@observed
def more_than_there_are(case: Case, values: list) -> bool:
    """You do forwards of micro-batches that do not exist. If there are fewer micro-batches than a stage could start
    with, it starts with all of them.
    """
    numbers = [action.micro_batch for row in rows_of(values) for action in row if action.kind == "F"]
    return max(numbers) >= case.inputs["micro_batches"]


@observed
def leaves_out_the_last(case: Case, values: list) -> bool:
    """The last micro-batches are left out on every stage. A stage's list has `2 * micro_batches` actions, whether or
    not the number of stages divides `micro_batches`.
    """
    last = case.inputs["micro_batches"] - 1
    return all(action.micro_batch < last for row in rows_of(values) for action in row)


@observed
def last_backwards_missing(case: Case, values: list) -> bool:
    """All forwards are there, but some backwards are missing, so their gradients would be lost: when there are no
    forwards left to alternate with, do the rest of the backwards.
    """
    counts = [[sum(action.kind == kind for action in row) for kind in "FB"] for row in rows_of(values)]
    everything = case.inputs["micro_batches"]
    return all(f == everything for f, _ in counts) and any(b < everything for _, b in counts)


@observed
def backward_before_forward(case: Case, values: list) -> bool:
    """A stage starts the backward of a micro-batch that it has not seen. If a stage starts with `stages - stage - 1`
    forwards, it then alternates a *forward* and a backward, in this order.
    """
    rows = rows_of(values)
    places = [{action: place for place, action in enumerate(row)} for row in rows]
    pairs = ((at, action, Action("F", action.micro_batch)) for at in places for action in at if action.kind == "B")
    return any(forward in at and at[forward] > at[action] for at, action, forward in pairs)


@observed
def all_forwards_first(case: Case, values: list) -> bool:
    """This is GPipe: legal and as fast as 1F1B, but every stage holds every micro-batch. Do a micro-batch's backward as
    soon as possible: that frees its activations.
    """
    everything = case.inputs["micro_batches"]
    rows = rows_of(values)
    if everything < 2 or any(first_forwards(row) != everything for row in rows):
        return False
    schedule = Schedule("yours", tuple(map(tuple, rows)), everything)
    check(schedule)  # raises if it is not even legal
    return too_slow(schedule, case.inputs["stages"]) is None


@observed
def one_at_a_time(case: Case, values: list) -> bool:
    """Each micro-batch goes forward and back before the next one starts: in between, the stage has nothing to do. Start
    a stage with as many forwards as it takes for the first micro-batch to come back.
    """
    return all(peak_held(row) == 1 for row in rows_of(values)) and max(needed(case)) > 1


@observed
def the_wrong_way_round(case: Case, values: list) -> bool:
    """A later stage starts with more forwards than an earlier one, and they wait for each other. The *first* stage's
    micro-batches have the longest way to go, so it starts with the most forwards.
    """
    ahead = [first_forwards(row) for row in rows_of(values)]
    return ahead == sorted(ahead) and ahead[0] < ahead[-1]


@observed
def the_same_everywhere(case: Case, values: list) -> bool:
    """All stages start with the same number of forwards. The later the stage, the sooner it can start its backwards,
    and the stages before it wait for those: how far ahead a stage must run depends on its position.
    """
    ahead = {first_forwards(row) for row in rows_of(values)}
    once = all(len(set(row)) == len(row) for row in values[0])
    return once and len(values[0]) > 1 and len(ahead) == 1 and len(set(needed(case))) > 1


@observed
def newest_first(case: Case, values: list) -> bool:
    """You do the backward of a *newer* micro-batch while an older one waits. The oldest comes back first; the newest
    still has to pass through all later stages, and everyone waits for it.
    """
    orders = [[action.micro_batch for action in row if action.kind == "B"] for row in rows_of(values)]
    return any(order != sorted(order) for order in orders)


@observed
def ignores_the_limit(case: Case, values: list) -> bool:
    """This is correct 1F1B if there is enough memory. With `most` below the number of stages, the first stages must
    start with fewer forwards, and the pipeline gets slower: that is the price.
    """
    stages, most = len(values[0]), case.inputs["most"]
    held = [peak_held(row) for row in rows_of(values)]
    return max(held) > most and all(count <= stages - stage for stage, count in enumerate(held))


@observed
def too_few_to_start_with(case: Case, values: list) -> bool:
    """A stage starts with too few forwards, and then waits longer than necessary for its backwards. The first
    micro-batch has `stages - stage` stages to visit, including this one; a stage starts with fewer only if `most` is
    below that, and then with `most`.
    """
    return any(first_forwards(row) < count for row, count in zip(rows_of(values), needed(case), strict=True))


@observed
def too_many_to_start_with(case: Case, values: list) -> bool:
    """A stage starts with more forwards than it needs. It holds more activations than necessary, and the stage before
    it waits for a gradient that could already have been sent. The last stage needs only one forward before its first
    backward.
    """
    return any(first_forwards(row) > count for row, count in zip(rows_of(values), needed(case), strict=True))


EXERCISE = Exercise(
    **texts("06.2"),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=(
        not_a_list_of_texts,
        goes_on_with_the_last_list,
        counts_from_one,
        more_than_there_are,
        leaves_out_the_last,
        last_backwards_missing,
        backward_before_forward,
        one_at_a_time,
        all_forwards_first,
        the_wrong_way_round,
        newest_first,
        the_same_everywhere,
        ignores_the_limit,
        too_few_to_start_with,
        too_many_to_start_with,
    ),
)
