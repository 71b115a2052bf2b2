"""Which examples each rank trains on, and when."""

from __future__ import annotations

from collections.abc import Iterator

import numpy

from course_lib.data.checks import check_at_least, check_rank


class ShardedBatches:
    """Lists of indices for one rank: every example exactly once per epoch over all ranks, and the same number of
    batches on every rank.

    `batch_size` counts the examples of all ranks together. The order of an epoch is cut into global batches of that
    size, and rank r takes the elements r, r + ranks, r + 2 * ranks, ... of each: however many ranks there are,
    together they train on what one process would. The last global batch may be smaller, and a rank's part of it
    empty; the rank still gets its (empty) list, because a rank that makes one step fewer hangs the others.

    A `DataLoader` takes it as `DataLoader(range(size), batch_sampler=batches, collate_fn=dataset.batch)`.
    """

    def __init__(
        self, size: int, batch_size: int, rank: int = 0, ranks: int = 1, shuffle: bool = True, seed: int = 0
    ) -> None:
        check_at_least(1, "there must be at least one example to sample", size=size)
        check_at_least(1, "a global batch holds at least one example", batch_size=batch_size)
        check_rank(rank, ranks)
        check_at_least(0, "a seed is 0 or more", seed=seed)
        self.size, self.batch_size, self.rank, self.ranks = size, batch_size, rank, ranks
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch: another one for each epoch, the same on every rank."""
        check_at_least(0, "epochs count from 0", epoch=epoch)
        self.epoch = epoch

    def __len__(self) -> int:
        """The number of batches in an epoch, on every rank."""
        return -(-self.size // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's part of each global batch, in turn."""
        for batch in self.global_batches():
            yield batch[self.rank :: self.ranks]

    def global_batches(self) -> list[list[int]]:
        """What all ranks together train on, or one process alone: each batch of this epoch, in order."""
        order = self._order()
        return [order[start : start + self.batch_size] for start in range(0, self.size, self.batch_size)]

    def _order(self) -> list[int]:
        if not self.shuffle:
            return list(range(self.size))
        # numpy's generator and not torch's: the order must not change with the version or the device.
        return numpy.random.default_rng([self.seed, self.epoch]).permutation(self.size).tolist()
