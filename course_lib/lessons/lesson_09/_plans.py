"""Plans for exercise 09.1, including careless ones, and file sizes that tell them apart."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

MOST = 4 / 3  # the limit, relative to the best plan's fullest reader: planning the largest file first never exceeds it
SHARE = 600  # bytes per reader in the best plan, for the cases made by `cut`


def cut(dice: random.Random, readers: int, pieces: tuple[int, int]) -> list[int]:
    """Return file sizes that can be split evenly: each reader's share, cut into pieces. Careless plans exceed the
    limit, and plans of different kinds give different shares.
    """
    while True:
        sizes = []
        for reader in range(readers):
            many = pieces[reader % 2] if reader < 2 else dice.randint(*pieces)
            cuts = sorted(dice.sample(range(1, SHARE), many - 1))
            sizes += [end - start for start, end in zip([0, *cuts], [*cuts, SHARE], strict=True)]
        dice.shuffle(sizes)
        too_full = all(max(loads(sizes, plan(sizes, readers))) > MOST * SHARE for plan in CARELESS)
        kinds = [{whoever(plan(sizes, readers)) for plan in kind} for kind in KINDS]
        if too_full and len(set().union(*kinds)) == sum(map(len, kinds)):
            return sizes


def whoever(shares: list[list[int]]) -> frozenset:
    """Return the shares of a plan, regardless of which reader has which."""
    return frozenset(map(frozenset, shares))


def loads(sizes: list[int], shares: list[list[int]]) -> list[int]:
    return [sum(sizes[file] for file in share) for share in shares]


def by_number(sizes: list[int], readers: int) -> list[list[int]]:
    return [list(range(len(sizes)))[reader::readers] for reader in range(readers)]


def by_stretches(sizes: list[int], readers: int) -> list[list[int]]:
    bounds = [len(sizes) * reader // readers for reader in range(readers + 1)]
    return [list(range(start, end)) for start, end in pairwise(bounds)]


def by_stretches_rounded_up(sizes: list[int], readers: int) -> list[list[int]]:
    bounds = [-(-len(sizes) * reader // readers) for reader in range(readers + 1)]
    return [list(range(start, end)) for start, end in pairwise(bounds)]


def by_chunks(sizes: list[int], readers: int) -> list[list[int]]:
    each = -(-len(sizes) // readers)
    return [list(range(len(sizes)))[reader * each : (reader + 1) * each] for reader in range(readers)]


def by_stretches_of_bytes(sizes: list[int], readers: int) -> list[list[int]]:
    before, shares = 0, [[] for _ in range(readers)]
    for file, size in enumerate(sizes):
        shares[before * readers // sum(sizes)].append(file)
        before += size
    return shares


def sorted_by_turns(sizes: list[int], readers: int) -> list[list[int]]:
    order = sorted(range(len(sizes)), key=lambda file: -sizes[file])
    return [order[reader::readers] for reader in range(readers)]


def to_and_fro(sizes: list[int], readers: int) -> list[list[int]]:
    order, there = sorted(range(len(sizes)), key=lambda file: -sizes[file]), list(range(readers))
    turns = [*there, *reversed(there)] * len(sizes)
    return [[file for file, whose in zip(order, turns, strict=False) if whose == reader] for reader in range(readers)]


def smallest_first(sizes: list[int], readers: int) -> list[list[int]]:
    return to_whoever_has_least(sizes, readers, sorted(range(len(sizes)), key=lambda file: sizes[file]))


def as_they_come(sizes: list[int], readers: int) -> list[list[int]]:
    return to_whoever_has_least(sizes, readers, list(range(len(sizes))))


def to_whoever_has_least(sizes: list[int], readers: int, order: list[int]) -> list[list[int]]:
    shares, loads = [[] for _ in range(readers)], [0] * readers
    for file in order:
        least = loads.index(min(loads))
        shares[least].append(file)
        loads[least] += sizes[file]
    return shares


CARELESS: tuple[Callable, ...] = (by_number, by_stretches, sorted_by_turns, to_and_fro, smallest_first)
IGNORE_SIZES: tuple[Callable, ...] = (by_number, by_stretches, by_stretches_rounded_up, by_chunks)
KINDS = (IGNORE_SIZES, (sorted_by_turns, to_and_fro), (smallest_first,), (as_they_come,), (by_stretches_of_bytes,))
