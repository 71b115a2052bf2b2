"""Batches of sequences of similar length, of about equal work, and how much of them is padding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy
from numpy.typing import ArrayLike

from course_lib.core.batch import check_at_least
from course_lib.core.samplers import Batches


class BucketedBatches(Batches):
    """Lists of indices for one rank: sequences of similar length together, in batches of about equal work.

    `tokens` limits the cells of a global batch: the number of sequences times the longest length, so padding counts.
    This also limits the memory of a batch. Only a sequence longer than the limit exceeds it, in a batch of one.

    An epoch is shuffled, then sorted by length in pools of `pool` batches. Each pool is cut into as few batches as the
    limit allows, as equal as possible, and the batches are shuffled again. A larger pool leaves less padding, but also
    less randomness. A batch lists its longest sequence first, so that all ranks get about equal work.
    """

    def __init__(
        self,
        lengths: ArrayLike,
        tokens: int,
        rank: int = 0,
        ranks: int = 1,
        pool: int = 50,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        self.lengths = numpy.asarray(lengths, dtype=numpy.int64)
        super().__init__(len(self.lengths), rank, ranks, shuffle, seed)
        check_at_least(1, "a sequence has at least one step", shortest=int(self.lengths.min()))
        check_at_least(1, "a global batch holds at least one token", tokens=tokens)
        check_at_least(1, "at least one batch is sorted at a time", pool=pool)
        self.tokens, self.pool = tokens, pool
        self._cache: tuple[int, list[list[int]]] | None = None  # for the last epoch requested

    def global_batches(self) -> list[list[int]]:
        if self._cache is not None and self._cache[0] == self.epoch:
            return self._cache[1]
        generator = self._generator()
        order = generator.permutation(self.size) if self.shuffle else numpy.arange(self.size)
        in_a_pool = max(1, round(self.pool * self.tokens / self.lengths.mean()))
        batches = []
        for start in range(0, self.size, in_a_pool):
            pool = order[start : start + in_a_pool]
            pool = pool[numpy.argsort(-self.lengths[pool], kind="stable")].tolist()
            batches += equal_cuts(pool, self.lengths[pool].tolist(), self.tokens)
        if self.shuffle:
            batches = [batches[place] for place in generator.permutation(len(batches))]
        self._cache = self.epoch, batches
        return batches


def equal_cuts(indices: list[int], lengths: list[int], cells: int) -> list[list[int]]:
    """Cut `indices`, longest first, into as few batches of at most `cells` as possible, and as equal as possible.

    Filling each batch in turn gives the fewest batches. The smallest limit that still gives this number of batches,
    found by bisection, makes them the most equal.
    """
    fewest = len(_batch_starts(lengths, cells))
    too_small, enough = 0, cells
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        too_small, enough = (too_small, middle) if len(_batch_starts(lengths, middle)) == fewest else (middle, enough)
    bounds = [*_batch_starts(lengths, enough), len(indices)]
    return [indices[start:stop] for start, stop in pairwise(bounds)]


def _batch_starts(lengths: list[int], cells: int) -> list[int]:
    """Return where each batch starts if each takes as many sequences as fit, at least one."""
    starts, start = [], 0
    while start < len(lengths):
        starts.append(start)
        start += max(1, cells // lengths[start])
    return starts


@dataclass(frozen=True)
class Load:
    """What an epoch of batches costs the ranks that share it, and how well it mixes sequences of all lengths."""

    updates: int
    tokens: int
    cells: int  # tokens and padding
    balance: float  # the work of the most loaded rank in each update, relative to the mean over ranks; 1 is perfect
    mixing: float  # the share of the lengths' variance within batches: 1 if random, 0 if each batch has one length

    @property
    def padding(self) -> float:
        """The fraction of cells that are padding, from 0 to 1."""
        return 1 - self.tokens / self.cells

    def __str__(self) -> str:
        return (
            f"{self.updates} updates, {self.padding:.1%} padding, mixing {self.mixing:.2f}, "
            f"most loaded rank {self.balance:.3f} times the mean"
        )


def load_of(global_batches: Iterable[list[int]], lengths: ArrayLike, ranks: int = 1) -> Load:
    """Return the padding, balance and mixing of an epoch, if each global batch is dealt out to `ranks` ranks."""
    batches = [numpy.asarray(lengths)[batch] for batch in global_batches]
    parts = [[batch[rank::ranks] for rank in range(ranks)] for batch in batches]
    cells = [[len(part) * int(part.max(initial=0)) for part in parts_of_batch] for parts_of_batch in parts]
    total = sum(map(sum, cells))
    everything = numpy.concatenate(batches)
    within = sum(len(batch) * batch.var() for batch in batches)
    return Load(
        updates=len(batches),
        tokens=int(everything.sum()),
        cells=total,
        balance=ranks * sum(map(max, cells)) / total,
        mixing=float(within / max(1e-12, len(everything) * everything.var())),
    )
