"""05.2 Place the blocks: how an answer is tested, and the wrong answers we recognize."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import combinations_with_replacement, pairwise, starmap
from operator import le, lt

from course_lib.checks.exercise import Case, Exercise, draw, show
from course_lib.lessons.symptoms import observed

Parts = list[list[int]]
DRAWN = 10
MOST_BLOCKS, MOST_DEVICES = 8, 4


def cases(seed: int) -> list[Case]:
    def case(part: str, seconds: list[list[int]], sizes: list[int], memory: list[int]) -> Case:
        inputs = {"seconds": seconds, "sizes": sizes, "memory": memory}
        return Case(part, 1, inputs, f"{seconds=}, {sizes=}, {memory=}")

    def some(part: str, make: Callable) -> list[Case]:
        return [case(part, *problem) for problem in draw(make, DRAWN, seed)]

    return [
        case("the fastest", [[2, 2, 2, 9], [1, 1, 1, 7]], [3, 1, 1, 1], [9, 9]),
        case("the fastest", [[1, 1], [9, 9], [1, 1]], [1, 1], [9, 9, 9]),
        *some("the fastest", with_room),
        case("a limit on memory", [[1, 1, 1, 1], [1, 1, 1, 1]], [4, 2, 1, 1], [5, 9]),
        case("a limit on memory", [[2, 2, 2], [1, 1, 1]], [2, 2, 2], [5, 3]),
        case("a limit on memory", [[1, 1], [1, 1]], [3, 3], [3, 3]),
        *some("a limit on memory", with_a_limit),
        case("nothing fits", [[1, 1], [1, 1]], [3, 3], [2, 5]),
        *some("nothing fits", too_small),
    ]


def blocks_from(chance: random.Random) -> tuple[list[list[int]], list[int]]:
    """Return seconds and sizes. Devices differ by a factor, or in which blocks they are fast at, or not at all."""
    blocks, devices = chance.randint(1, MOST_BLOCKS), chance.randint(1, MOST_DEVICES)
    sizes = [chance.randint(1, 9) for _ in range(blocks)]
    base = [chance.randint(1, 9) for _ in range(blocks)]
    kind = chance.choice(["factor", "factor", "own", "alike"])
    if kind == "own":
        return [[chance.randint(1, 9) for _ in range(blocks)] for _ in range(devices)], sizes
    factors = [chance.choice([1, 2, 3, 9]) if kind == "factor" else 1 for _ in range(devices)]
    return [[factor * second for second in base] for factor in factors], sizes


def with_room(chance: random.Random) -> tuple[list[list[int]], list[int], list[int]]:
    seconds, sizes = blocks_from(chance)
    return seconds, sizes, [sum(sizes)] * len(seconds)


def with_a_limit(chance: random.Random) -> tuple[list[list[int]], list[int], list[int]]:
    """Return a problem with just enough memory for one placement, or a little more: the fastest one, or a
    random one.
    """
    seconds, sizes = blocks_from(chance)
    ways = all_parts(len(sizes), len(seconds))
    chosen = chance.choice([chance.choice(ways), min(ways, key=partial(slowest, seconds))])
    needed = [sum(sizes[block] for block in part) for part in chosen]
    return seconds, sizes, [need + chance.choice([0, 0, 1, 5]) for need in needed]


def too_small(chance: random.Random) -> tuple[list[list[int]], list[int], list[int]]:
    """Return a problem where no placement fits, even though the total memory may be enough."""
    while True:
        seconds, sizes = blocks_from(chance)
        each = sum(sizes) // len(seconds)
        memory = [max(0, each + chance.randint(-3, 3)) for _ in seconds]
        if fastest(seconds, sizes, memory) is None:
            return seconds, sizes, memory


def drive(answer, seconds: list[list[int]], sizes: list[int], memory: list[int]):
    parts = answer(seconds, sizes, memory)
    return None if parts is None else [list(map(int, part)) for part in parts]


def judge(case: Case, values: list) -> str | None:
    seconds, sizes, memory = case.inputs.values()
    (parts,), best = values, fastest(seconds, sizes, memory)
    if parts is None or best is None:
        return None if parts is best else f"it is {show(parts)}, it should be {best and 'a placement: there is one'}"
    if sum(map(len, parts)) != len(sizes) or len(parts) != len(memory):
        return f"{show(parts)}: there must be {len(memory)} lists, one for each device, and each block in one of them"
    blocks = [block for part in parts for block in part]
    if sorted(blocks) != list(range(len(sizes))):
        return f"{parts}: every block from 0 to {len(sizes) - 1} must be in it once"
    if blocks != sorted(blocks):
        return f"{parts}: the blocks of a device must be consecutive, and the devices in order"
    used = [sum(sizes[block] for block in part) for part in parts]
    full = next((device for device, need in enumerate(used) if need > memory[device]), None)
    if full is not None:
        return f"{parts}: device {full} needs {used[full]} of memory, and has {memory[full]}"
    if slowest(seconds, parts) > slowest(seconds, best):
        pace = f"its slowest device takes {slowest(seconds, parts)}"
        return f"{parts}: {pace}, there is a placement with {slowest(seconds, best)}"
    return None


def all_parts(blocks: int, devices: int) -> list[Parts]:
    """Return every way to cut the blocks into consecutive parts, which may be empty."""
    cuts = combinations_with_replacement(range(blocks + 1), devices - 1)
    return [[list(range(start, stop)) for start, stop in pairwise((0, *chosen, blocks))] for chosen in cuts]


def times(seconds: list[list[int]], parts: Parts) -> list[int]:
    return [sum(own[block] for block in part) for own, part in zip(seconds, parts, strict=True)]


def slowest(seconds: list[list[int]], parts: Parts) -> int:
    return max(times(seconds, parts))


def fits(sizes: list[int], memory: list[int], parts: Parts, within: Callable[[int, int], bool] = le) -> bool:
    used = (sum(sizes[block] for block in part) for part in parts)
    return all(starmap(within, zip(used, memory, strict=True)))


def fastest(seconds: list[list[int]], sizes: list[int], memory: list[int], within: Callable = le) -> Parts | None:
    fitting = [parts for parts in all_parts(len(sizes), len(memory)) if fits(sizes, memory, parts, within)]
    return min(fitting, key=partial(slowest, seconds), default=None)


def _is_best_of(
    case: Case, parts: Parts | None, cost: Callable[[Parts], float], allowed: Callable[[Parts], bool]
) -> bool:
    """Return whether this placement minimizes `cost` among the `allowed` placements."""
    _, sizes, memory = case.inputs.values()
    ways = list(filter(allowed, all_parts(len(sizes), len(memory))))
    if parts is None or not ways:
        return parts is None and not ways
    return parts in ways and cost(parts) == min(map(cost, ways))


@observed
def has_dealt_out_in_turn(case: Case, values: list) -> bool:
    """Activations go backwards through the devices, or back and forth. Each device gets one contiguous part of the
    model, and the devices follow each other in order; you choose only the cuts.
    """
    blocks = [block for part in values[0] or [] for block in part]
    return sorted(blocks) == list(range(len(case.inputs["sizes"]))) != blocks


@observed
def has_given_up_too_soon(case: Case, values: list) -> bool:
    """There are placements that fit, but you return None: just because the *fastest* doesn't fit, or the one you found,
    doesn't mean that none does.
    """
    return values[0] is None


def has_left_room(case: Case, values: list) -> bool:
    """A device that is *exactly* full is refused. Blocks fit if they need no more than the device's memory."""
    seconds, sizes, memory = case.inputs.values()
    return _is_best_of(case, values[0], partial(slowest, seconds), lambda way: fits(sizes, memory, way, lt))


@observed
def has_given_nothing(case: Case, values: list) -> bool:
    """Here no placement fits, and you return an empty list. Return None instead."""
    seconds, sizes, memory = case.inputs.values()
    return values[0] == [] and fastest(seconds, sizes, memory) is None


@observed
def has_never_given_up(case: Case, values: list) -> bool:
    """Here no placement fits, and you return one anyway: the job would run out of memory in its first step. Return
    None.
    """
    seconds, sizes, memory = case.inputs.values()
    return values[0] is not None and fastest(seconds, sizes, memory) is None


@observed
def has_ignored_the_memory(case: Case, values: list) -> bool:
    """The placement is fast, but one device cannot hold its blocks. Compare what they need with the memory of *that*
    device. Leave out the placements that do not fit before you choose.
    """
    seconds, sizes, memory = case.inputs.values()
    best = fastest(seconds, sizes, memory)
    return (
        not fits(sizes, memory, values[0])
        and best is not None
        and slowest(seconds, values[0]) <= slowest(seconds, best)
    )


def has_taken_one_limit_for_all(case: Case, values: list) -> bool:
    """Every device has a memory of its own, but you apply one device's limit to all of them."""
    seconds, sizes, memory = case.inputs.values()
    limits = {max(memory), min(memory), memory[0]}
    others = ([limit] * len(memory) for limit in limits if len(set(memory)) > 1 and limit < sum(sizes))
    pace = partial(slowest, seconds)
    return any(_is_best_of(case, values[0], pace, lambda way, other=other: fits(sizes, other, way)) for other in others)


def has_used_every_device(case: Case, values: list) -> bool:
    """You try only placements in which every device has a block, even a slow one that all others then wait for; with
    fewer blocks than devices, there are none. A device may stay empty: try those placements, too.
    """
    seconds, sizes, memory = case.inputs.values()
    return _is_best_of(case, values[0], partial(slowest, seconds), lambda way: all(way) and fits(sizes, memory, way))


def has_taken_the_devices_for_alike(case: Case, values: list) -> bool:
    """You balance as if all devices were alike. Device `d` takes `seconds[d][b]` for block `b`: what matters is the
    time of each device's blocks on *that* device.
    """
    seconds, sizes, memory = case.inputs.values()
    means = [sum(column) for column in zip(*seconds, strict=True)]
    rows = [row for row in (*seconds, means) if [row] * len(memory) != seconds]

    def like(row: list[int], full: bool) -> bool:
        pace = partial(slowest, [row] * len(memory))
        return _is_best_of(case, values[0], pace, lambda way: fits(sizes, memory, way) and (all(way) or not full))

    return any(like(row, full) for row in rows for full in (False, True))


def has_made_the_sum_small(case: Case, values: list) -> bool:
    """The *sum* of all devices' seconds is minimal. In a pipeline, the devices work at the same time, and all wait for
    the slowest: minimize its seconds.
    """
    seconds, sizes, memory = case.inputs.values()

    def total(way: Parts) -> int:
        return sum(times(seconds, way))

    differ = len(set(map(total, all_parts(len(sizes), len(memory))))) > 1
    return differ and _is_best_of(case, values[0], total, lambda way: fits(sizes, memory, way))


def has_balanced_the_memory(case: Case, values: list) -> bool:
    """You minimize the memory of the fullest device. Memory only has to fit: the exercise asks for the fastest of all
    placements that fit.
    """
    _, sizes, memory = case.inputs.values()
    return _is_best_of(case, values[0], partial(slowest, [sizes] * len(memory)), lambda way: fits(sizes, memory, way))


def has_counted_blocks(case: Case, values: list) -> bool:
    """Equally many blocks on each device are equal work only if blocks and devices are alike. Compare their seconds."""
    counts = [len(part) for part in values[0]]
    if len(counts) != len(case.inputs["memory"]):
        return False
    return max(counts) - min(counts) <= 1


def has_filled_one_after_the_other(case: Case, values: list) -> bool:
    """You fill each device until it is full, then move on to the next: memory is a limit, not a goal. Minimize the time
    of the slowest device, which takes a comparison of whole placements.
    """
    _, sizes, memory = case.inputs.values()
    return all(
        not after or sum(sizes[block] for block in [*part, after[0]]) > memory[device]
        for device, (part, after) in enumerate(pairwise(values[0]))
    )


EXERCISE = Exercise(
    number="05.2",
    title="Place the blocks",
    answer="place",
    level="exercise",
    minutes=15,
    parts={"the fastest": 2, "a limit on memory": 2, "nothing fits": 1},
    read="3 · Placement: which block lives where",
    hints=(
        "A placement in consecutive parts is determined by its cuts. How many ways are there to cut 6 blocks into 3 "
        "parts, if a part may be empty?",
        "So few that you can try them all: `itertools.combinations_with_replacement(range(blocks + 1), devices - 1)` "
        "gives the cuts.",
        "First leave out what doesn't fit, then take the placement whose slowest device is fastest: "
        "`min(..., default=None)`",
    ),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=(
        has_dealt_out_in_turn,
        has_given_nothing,
        has_never_given_up,
        has_left_room,
        has_used_every_device,
        has_taken_one_limit_for_all,
        has_given_up_too_soon,
        has_taken_the_devices_for_alike,
        has_made_the_sum_small,
        has_ignored_the_memory,
        has_balanced_the_memory,
        has_counted_blocks,
        has_filled_one_after_the_other,
    ),
)
