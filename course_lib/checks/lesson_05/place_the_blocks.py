"""05.2 Place the blocks: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations, pairwise

import torch

from course_lib.checks.exercise import Case, Exercise, seeded


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, blocks: int, stages: int) -> Case:
        while True:
            seconds, sizes = (torch.randint(1, 12, (blocks,), generator=generator).tolist() for _ in range(2))
            memory = memory_for(part, seconds, sizes, stages)
            if memory and is_telling(part, seconds, sizes, stages, memory):
                break
        inputs = {"seconds": seconds, "sizes": sizes, "stages": stages, "memory": memory}
        return Case(part, 1, inputs, f"{stages} stages, {seconds=}, {sizes=}, {memory=}")

    return [
        case("the fastest", 6, 3),
        case("the fastest", 8, 4),
        case("a limit on memory", 6, 3),
        case("nothing fits", 6, 3),
    ]


def memory_for(part: str, seconds: list[int], sizes: list[int], stages: int) -> int | None:
    """More than enough; less than the fastest placement needs, and enough for another; or too little for any."""
    if part == "the fastest":
        return sum(sizes)
    least, needed = (largest(sizes, fastest_of_all(values, stages)) for values in (sizes, seconds))
    if part == "nothing fits":
        return least - 1 if least > max(sizes) else None
    return needed - 1 if least < needed else None


def is_telling(part: str, *inputs) -> bool:
    """Whether the mistakes of this part show, each in its own way."""
    mistakes = {"the fastest": UNLIMITED, "a limit on memory": LIMITED, "nothing fits": (never_gives_up,)}[part]
    answers = [mistake(*inputs) for mistake in mistakes]
    return len(set(map(str, answers))) == len(answers) and all(wrong_placement(each, *inputs) for each in answers)


def drive(answer, seconds: list[int], sizes: list[int], stages: int, memory: int):
    return answer(seconds, sizes, stages, memory)


def judge(case: Case, values: list) -> str | None:
    return wrong_placement(values[0], **case.inputs)


def wrong_placement(parts, seconds: list[int], sizes: list[int], stages: int, memory: int) -> str | None:
    best = fastest(seconds, sizes, stages, memory)
    if parts is None or best is None:
        return None if parts is best else f"it is {parts}, it should be {best and 'a placement: there is one'}"
    blocks = [block for part in parts for block in part]
    if sorted(blocks) != list(range(len(seconds))):
        return f"{parts}: every block from 0 to {len(seconds) - 1} must be in it once"
    if blocks != sorted(blocks):
        return f"{parts}: the blocks of a stage must be consecutive, and the stages in order"
    if len(parts) != stages or not all(parts):
        return f"{parts}: there must be {stages} stages, each with a block"
    if largest(sizes, parts) > memory:
        return f"{parts}: a stage needs {largest(sizes, parts)} of memory, and has {memory}"
    if largest(seconds, parts) > largest(seconds, best):
        pace = f"its slowest stage takes {largest(seconds, parts)}"
        return f"{parts}: {pace}, there is a placement with {largest(seconds, best)}"
    return None


Parts = list[list[int]]


def largest(values: list[int], parts: Parts) -> int:
    return max(sum(values[block] for block in part) for part in parts)


def all_parts(blocks: int, stages: int) -> list[Parts]:
    """Every way to cut the blocks into consecutive parts."""
    cuts = ((0, *chosen, blocks) for chosen in combinations(range(1, blocks), stages - 1))
    return [[list(range(start, stop)) for start, stop in pairwise(bounds)] for bounds in cuts]


def fastest(seconds: list[int], sizes: list[int], stages: int, memory: int) -> Parts | None:
    fitting = [parts for parts in all_parts(len(seconds), stages) if largest(sizes, parts) <= memory]
    return min(fitting, key=partial(largest, seconds), default=None)


def fastest_of_all(seconds: list[int], stages: int) -> Parts:
    """As if memory were no limit."""
    return min(all_parts(len(seconds), stages), key=partial(largest, seconds))


def filled(values: list[int], stages: int, is_full: Callable[[list[int]], bool]) -> Parts:
    """Block after block on a stage until `is_full`; one block at least is left for each stage that follows."""
    parts: Parts = [[]]
    for block in range(len(values)):
        must = len(values) - block <= stages - len(parts)
        if parts[-1] and len(parts) < stages and (must or is_full([values[b] for b in [*parts[-1], block]])):
            parts.append([])
        parts[-1].append(block)
    return parts


def in_turn(seconds, sizes, stages, memory):
    """Dealt out in turn, neighbours live on different stages, and the activations change stages at every block. Give
    each stage consecutive blocks.
    """
    return [list(range(stage, len(seconds), stages)) for stage in range(stages)]


def packed_by_time(seconds, sizes, stages, memory):
    """Well balanced, but the stages' blocks are not consecutive: activations would go back and forth between stages.
    A stage must be one stretch of the model; only the cuts are yours to choose.
    """
    parts: Parts = [[] for _ in range(stages)]
    for block in sorted(range(len(seconds)), key=lambda block: -seconds[block]):
        min(parts, key=lambda part: sum(seconds[b] for b in part)).append(block)
    return [sorted(part) for part in parts]


def equally_many(seconds, sizes, stages, memory):
    """Equally many blocks on each stage is equal work only if the blocks are alike. Balance their seconds."""
    each, extra = divmod(len(seconds), stages)
    bounds = [stage * each + min(stage, extra) for stage in range(stages + 1)]
    return [list(range(start, stop)) for start, stop in pairwise(bounds)]


def filled_to_the_mean(seconds, sizes, stages, memory):
    """You fill each stage up to its fair share of the seconds and go on. A block that passes the share may be too much
    here, and what is left at the end too much for the last stage: compare whole placements.
    """
    share = sum(seconds) / stages
    return filled(seconds, stages, lambda values: sum(values[:-1]) >= share)


def filled_to_the_limit(seconds, sizes, stages, memory):
    """You fill each stage until its memory is full. Memory is a limit; what should be small is the time of the slowest
    stage.
    """
    return filled(sizes, stages, lambda values: sum(values) > memory)


def balanced_in_memory(seconds, sizes, stages, memory):
    """This makes the largest stage as small as can be. Memory only has to fit: of all placements that fit, the fastest
    is asked for.
    """
    return fastest_of_all(sizes, stages)


def ignores_the_memory(seconds, sizes, stages, memory):
    """The fastest placement, and a stage of it does not fit. Leave out the placements that do not fit before you
    choose.
    """
    return fastest_of_all(seconds, stages)


def moves_what_does_not_fit(seconds, sizes, stages, memory):
    """You start from the fastest placement and push on what does not fit. The placement that fits is not always near
    the fastest one, and the last stage has nobody to push to: choose among all placements that fit.
    """
    parts = fastest_of_all(seconds, stages)
    for part, after in pairwise(parts):
        while len(part) > 1 and sum(sizes[block] for block in part) > memory:
            after.insert(0, part.pop())
    return parts


def never_gives_up(seconds, sizes, stages, memory):
    """Here no placement fits, and you return one all the same: the job would run out of memory in its first step.
    Return None.
    """
    return fastest(seconds, sizes, stages, memory) or fastest_of_all(sizes, stages)


def gives_up_too_soon(seconds, sizes, stages, memory):
    """There are placements that fit, and you return None: that the *fastest* does not fit does not mean that none
    does.
    """
    parts = fastest_of_all(seconds, stages)
    return parts if largest(sizes, parts) <= memory else None


UNLIMITED = (in_turn, packed_by_time, equally_many, filled_to_the_mean, filled_to_the_limit, balanced_in_memory)
LIMITED = (ignores_the_memory, moves_what_does_not_fit, gives_up_too_soon)

EXERCISE = Exercise(
    number="05.2",
    title="Place the blocks",
    answer="place",
    level="exercise",
    minutes=20,
    parts={"the fastest": 2, "a limit on memory": 2, "nothing fits": 1},
    read="3 · Placement: which block lives where",
    hints=(
        "A placement in consecutive parts is decided by where it is cut. How many ways are there to cut 6 blocks in 3?",
        "So few that you can try them all: `itertools.combinations(range(1, blocks), stages - 1)` gives the cuts.",
        "First leave out what does not fit, then take the one whose slowest stage is fastest: `min(..., default=None)`",
    ),
    cases=cases,
    drive=drive,
    judge=judge,
    mistakes=(*UNLIMITED, *LIMITED, never_gives_up),
)
