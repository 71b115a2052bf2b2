"""Which examples each rank trains on, and when.

Every sampler here computes *global* batches from the seed and the epoch alone, and splits each among the ranks.
So the ranks agree without a message, and with any world size they train on the same data as one process would. Every
rank makes the same number of steps, because a rank that makes one fewer would hang the others.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy

from course_lib.core.batch import check_at_least, check_rank


class Batches:
    """The base class of the samplers. A subclass defines only the global batches of an epoch.

    A `DataLoader` takes one as `DataLoader(range(size), batch_sampler=batches, collate_fn=dataset.batch)`.
    """

    def __init__(self, size: int, rank: int, ranks: int, shuffle: bool, seed: int) -> None:
        check_at_least(1, "there must be at least one example to sample", size=size)
        check_rank(rank, ranks)
        check_at_least(0, "a seed is 0 or more", seed=seed)
        self.size, self.rank, self.ranks = size, rank, ranks
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0

    def global_batches(self) -> list[list[int]]:
        """Return the batches of this epoch, in order, for all ranks together."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order: different for each epoch, the same on every rank."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches in this epoch, on every rank."""
        return len(self.global_batches())

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's part of each global batch: elements rank, rank + ranks, ...; it may be empty."""
        for batch in self.global_batches():
            yield batch[self.rank :: self.ranks]

    def _generator(self) -> numpy.random.Generator:
        # numpy's generator, not torch's: the order must not change with the version or the device.
        return numpy.random.default_rng([self.seed, self.epoch])


class ShardedBatches(Batches):
    """Lists of indices for one rank: `batch_size` examples over all ranks, regardless of their lengths.

    Every example appears exactly once per epoch. The last global batch may be smaller, and a rank's part of it empty.
    """

    def __init__(
        self, size: int, batch_size: int, rank: int = 0, ranks: int = 1, shuffle: bool = True, seed: int = 0
    ) -> None:
        super().__init__(size, rank, ranks, shuffle, seed)
        check_at_least(1, "a global batch holds at least one example", batch_size=batch_size)
        self.batch_size = batch_size

    def __len__(self) -> int:
        """Return the number of batches in an epoch, on every rank."""
        return -(-self.size // self.batch_size)

    def global_batches(self) -> list[list[int]]:
        order = self._generator().permutation(self.size).tolist() if self.shuffle else list(range(self.size))
        return [order[start : start + self.batch_size] for start in range(0, self.size, self.batch_size)]
