"""05.2 Place the blocks: the check, and the wrong answers it recognizes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from itertools import combinations_with_replacement, pairwise, starmap
from operator import le, lt

from course_lib.checks.exercise import Case, Exercise, draw, show
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import observed

Parts = list[list[int]]
Problem = tuple[list[list[int]], list[int], list[int]]  # seconds, sizes, memory
Rule = tuple[Callable[[Parts], float], Callable[[Parts], bool]]  # what an answer minimizes, and among which placements
DRAWN = 10
MOST_BLOCKS, MOST_DEVICES = 8, 4


def cases(seed: int) -> list[Case]:
    def case(part: str, seconds: list[list[int]], sizes: list[int], memory: list[int]) -> Case:
        inputs = {"seconds": seconds, "sizes": sizes, "memory": memory}
        return Case(part, 1, inputs, f"{seconds=}, {sizes=}, {memory=}")

    def some(part: str, make: Callable) -> list[Case]:
        return [case(part, *problem) for problem in draw(make, DRAWN, seed)]

    return [
        case("the fastest", [[9, 1, 1, 2], [7, 3, 6, 4], [6, 5, 2, 1]], [5, 1, 7, 1], [20, 20, 20]),
        case("the fastest", [[2, 2, 2, 9], [1, 1, 1, 7]], [3, 1, 1, 1], [9, 9]),
        case("the fastest", [[1, 1], [9, 9], [1, 1]], [1, 1], [9, 9, 9]),
        *some("the fastest", with_room),
        case("a limit on memory", [[1, 1, 1, 1], [1, 1, 1, 1]], [4, 2, 1, 1], [5, 9]),
        case("a limit on memory", [[2, 2, 2], [1, 1, 1]], [2, 2, 2], [5, 3]),
        case("a limit on memory", [[1, 1], [1, 1]], [3, 3], [3, 3]),
        case("a limit on memory", [[1, 1, 1], [9, 9, 9]], [2, 2, 2], [2, 4]),  # slower than all blocks on device 0
        *some("a limit on memory", with_a_limit),
        case("nothing fits", [[1, 1], [1, 1]], [3, 3], [2, 5]),
        case("nothing fits", [[1, 1]], [3, 3], [5]),
        *some("nothing fits", too_small),
    ]


def blocks_from(chance: random.Random) -> tuple[list[list[int]], list[int]]:
    """Return seconds and sizes. Devices differ by a factor, or in the blocks that they are fast at, or not at all."""
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
    """Return a problem with just enough memory, or a little more, for the fastest or a random placement."""
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


def probes() -> list[Problem]:
    """Return problems that tell one goal from another: a mistake is reported only if it explains all the answers."""
    chance = random.Random(5)
    own = [[[chance.randint(1, 9) for _ in range(5)] for _ in range(devices)] for devices in (3, 3, 2, 3, 2, 3)]
    sizes = [[chance.randint(1, 9) for _ in range(5)] for _ in own]
    return [(seconds, size, [sum(size)] * len(seconds)) for seconds, size in zip(own, sizes, strict=True)]


# Each has a placement that fits, but only if a device may be exactly full.
SNUG: list[Problem] = [([[1, 1], [1, 1]], [3, 3], [3, 3]), ([[1, 2, 1], [1, 1, 1]], [2, 2, 2], [4, 2])]
SNUG += [([[1, 9], [3, 2]], [4, 1], [4, 1]), ([[9, 9], [1, 1]], [3, 3], [3, 3])]


def drive(answer, seconds: list[list[int]], sizes: list[int], memory: list[int]):
    """Return the answer's parts for this problem and for each probe; False for a probe on which it raised an error."""

    def ask(*problem):
        parts = answer(*copy.deepcopy(problem))
        return None if parts is None else [list(map(int, part)) for part in parts]

    def try_it(*problem):
        try:
            return ask(*problem)
        except Exception:
            return False

    parts = ask(seconds, sizes, memory)
    return {
        "parts": parts,
        "probes": [try_it(*probe) for probe in probes()],
        "snug": [try_it(*one) for one in SNUG],
        "few": try_it([[1], [1]], [1], [5, 5]),  # fewer blocks than devices
    }


def judge(case: Case, values: list) -> str | None:
    seconds, sizes, memory = case.inputs.values()
    parts, best = values[0]["parts"], fastest(seconds, sizes, memory)
    if parts is None or best is None:
        return None if parts is best else f"it is {show(parts)}, it should be {best and 'a placement: there is one'}"
    if sum(map(len, parts)) != len(sizes) or len(parts) != len(memory):
        return f"{show(parts)}: there must be {len(memory)} lists, one for each device, and each block in one of them"
    blocks = [block for part in parts for block in part]
    if sorted(blocks) != list(range(len(sizes))):
        return f"{parts}: every block from 0 to {len(sizes) - 1} must appear exactly once"
    if blocks != sorted(blocks):
        return f"{parts}: the blocks of a device must be consecutive, and the devices in order"
    used = [sum(sizes[block] for block in part) for part in parts]
    full = next((device for device, need in enumerate(used) if need > memory[device]), None)
    if full is not None:
        return f"{parts}: device {full} needs {used[full]} of memory, but has {memory[full]}"
    if slowest(seconds, parts) > slowest(seconds, best):
        pace = f"its slowest device takes {slowest(seconds, parts)}"
        return f"{parts}: {pace}, but there is a placement with {slowest(seconds, best)}"
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


def _follows(case: Case, values: list, rule: Callable[..., Rule], snug: bool = False) -> bool:
    """Return whether the answer follows a rule, `rule(seconds, sizes, memory)`, here and in all probes.

    `snug` adds the problems in which memory is tight: a rule about memory needs them.
    """
    here: Problem = (case.inputs["seconds"], case.inputs["sizes"], case.inputs["memory"])
    pairs = [(here, values[0]["parts"]), *zip(probes(), values[0]["probes"], strict=True)]
    if snug or values[0]["parts"] is None:  # many rules give None here: the snug problems tell them apart
        pairs += zip(SNUG, values[0]["snug"], strict=True)
    return all(parts is not False and _is_best_of(problem, parts, *rule(*problem)) for problem, parts in pairs)


def _is_best_of(problem: Problem, parts: Parts | None, cost: Callable, allowed: Callable) -> bool:
    """Return whether this placement minimizes `cost` among the `allowed` placements."""
    ways = list(filter(allowed, all_parts(len(problem[1]), len(problem[2]))))
    if parts is None or not ways:
        return parts is None and not ways
    return parts in ways and cost(parts) == min(map(cost, ways))


@observed
def has_dealt_out_in_turn(case: Case, values: list) -> bool:
    """Activations go backwards through the devices, or back and forth. Each device gets one contiguous part of the
    model, and the devices follow each other in order; you choose only the cuts.
    """
    blocks = [block for part in values[0]["parts"] or [] for block in part]
    return sorted(blocks) == list(range(len(case.inputs["sizes"]))) != blocks


@observed
def has_given_up_too_soon(case: Case, values: list) -> bool:
    """There are placements that fit, but you return None: just because the *fastest* doesn't fit, or the one you found,
    doesn't mean that none does.
    """
    return values[0]["parts"] is None


@observed
def has_left_room(case: Case, values: list) -> bool:
    """A device that is *exactly* full is refused. Blocks fit if they need no more than the device's memory."""
    refused = all(parts is None for parts in values[0]["snug"])
    return refused and _follows(case, values, lambda s, z, m: (partial(slowest, s), lambda way: fits(z, m, way, lt)))


@observed
def has_given_nothing(case: Case, values: list) -> bool:
    """Here no placement fits, and you return an empty list. Return None instead."""
    seconds, sizes, memory = case.inputs.values()
    return values[0]["parts"] == [] and fastest(seconds, sizes, memory) is None


@observed
def has_never_given_up(case: Case, values: list) -> bool:
    """Here no placement fits, and you return one anyway: the job would run out of memory in its first step. Return
    None.
    """
    seconds, sizes, memory = case.inputs.values()
    return values[0]["parts"] is not None and fastest(seconds, sizes, memory) is None


@observed
def has_ignored_the_memory(case: Case, values: list) -> bool:
    """The placement is fast, but one device cannot hold its blocks. Compare what they need with the memory of *that*
    device. Leave out the placements that do not fit before you choose.
    """
    seconds, sizes, memory = case.inputs.values()
    parts, best = values[0]["parts"], fastest(seconds, sizes, memory)
    return best is not None and not fits(sizes, memory, parts) and slowest(seconds, parts) <= slowest(seconds, best)


@observed
def has_taken_one_limit_for_all(case: Case, values: list) -> bool:
    """Every device has a memory of its own, but you apply one device's limit to all of them."""
    if len(set(case.inputs["memory"])) == 1:
        return False

    def like(limit: Callable) -> bool:
        if limit(case.inputs["memory"]) >= sum(case.inputs["sizes"]):  # everything fits within this limit
            return False

        def rule(seconds: list[list[int]], sizes: list[int], memory: list[int]) -> Rule:
            return partial(slowest, seconds), lambda way: fits(sizes, [limit(memory)] * len(memory), way)

        return _follows(case, values, rule, snug=True)

    return any(map(like, (min, max, lambda memory: memory[0])))


@observed
def has_used_every_device(case: Case, values: list) -> bool:
    """You try only placements in which every device has a block, even a slow one that all others then wait for; with
    fewer blocks than devices, there are none. A device may stay empty: try those placements, too.
    """
    if isinstance(values[0]["few"], list):
        return False  # a placement that leaves a device empty
    return _follows(case, values, lambda s, z, m: (partial(slowest, s), lambda way: all(way) and fits(z, m, way)))


@observed
def has_taken_the_devices_for_alike(case: Case, values: list) -> bool:
    """You balance as if all devices were alike. Device `d` takes `seconds[d][b]` for block `b`: what matters is the
    time of each device's blocks on *that* device.
    """

    def like(row: Callable, full: bool) -> bool:
        def rule(seconds: list[list[int]], sizes: list[int], memory: list[int]) -> Rule:
            pace = partial(slowest, [row(seconds)] * len(memory))
            return pace, lambda way: fits(sizes, memory, way) and (all(way) or not full)

        return _follows(case, values, rule)

    rows = (lambda s: s[0], lambda s: s[-1], lambda s: [sum(column) / len(s) for column in zip(*s, strict=True)])
    return any(like(row, full) for row in rows for full in (False, True))


@observed
def has_made_the_sum_small(case: Case, values: list) -> bool:
    """The *sum* of all devices' seconds is what you minimize. In a pipeline, the devices work at the same time, and all
    wait for the slowest: minimize its seconds.
    """
    return _follows(case, values, lambda s, z, m: (lambda way: sum(times(s, way)), lambda way: fits(z, m, way)))


@observed
def has_balanced_the_memory(case: Case, values: list) -> bool:
    """You minimize the memory of the fullest device. Memory only has to fit: the exercise asks for the fastest of all
    placements that fit.
    """
    return _follows(case, values, lambda s, z, m: (partial(slowest, [z] * len(m)), lambda way: fits(z, m, way)))


@observed
def has_counted_blocks(case: Case, values: list) -> bool:
    """Each device has the same number of blocks, give or take one: that is equal work only if blocks and devices are
    alike. Compare their seconds.
    """

    def counts(way: Parts) -> int:
        return max(map(len, way)) - min(map(len, way))

    here = len(values[0]["parts"]) == len(case.inputs["memory"])
    return here and all(counts(parts) <= 1 for parts in (values[0]["parts"], *values[0]["probes"]))


def has_filled_one_after_the_other(case: Case, values: list) -> bool:
    """You fill each device until it is full, then move on to the next: memory is a limit, not a goal. Minimize the time
    of the slowest device, which takes a comparison of whole placements.
    """
    _, sizes, memory = case.inputs.values()
    return all(
        not after or sum(sizes[block] for block in [*part, after[0]]) > memory[device]
        for device, (part, after) in enumerate(pairwise(values[0]["parts"]))
    )


@observed
def is_not_the_fastest(case: Case, values: list) -> bool:
    """The placement fits, but another one that fits is faster. All devices wait for the slowest: compare whole
    placements by the total seconds of their slowest device, and take the one with the fewest.
    """
    parts, sizes, memory = values[0]["parts"], case.inputs["sizes"], case.inputs["memory"]
    in_order = [block for part in parts for block in part] == list(range(len(sizes)))
    return in_order and len(parts) == len(memory) and fits(sizes, memory, parts)


EXERCISE = Exercise(
    **texts("05.2"),
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
        is_not_the_fastest,
    ),
)
