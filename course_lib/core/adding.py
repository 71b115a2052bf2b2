"""The adding problem of Hochreiter and Schmidhuber (1997), on which the LSTM was first shown to work.

Each step has two features: a number uniform in [0, 1), and a marker. Two steps are marked 1, one in each half of
the sequence; the others are marked 0. The target, after the last step, is the sum of the two marked numbers.

Always answering 1 gives a mean squared error of 1/6, the variance of a sum of two uniform numbers. A model with a lower
error must have remembered something.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from course_lib.core.batch import Batch, check_at_least


class AddingProblem:
    """A map-style dataset: item i is (sequence (length, 2), answer ()), and depends only on the seed and i.

    The numbers come from numpy's PCG64, so they are the same on every machine and with every version of torch.
    A sequence is generated when it is first requested, then cached.
    """

    def __init__(
        self, size: int, lengths: tuple[int, int] = (5, 20), seed: int = 0, dtype: torch.dtype = torch.float32
    ) -> None:
        check_at_least(1, "a dataset needs at least one sequence", size=size)
        check_at_least(0, "a seed is 0 or more", seed=seed)
        shortest, longest = lengths
        if shortest < 2:
            raise ValueError(f"lengths={lengths}: two steps are marked, so the shortest length is at least 2")
        if longest < shortest:
            raise ValueError(f"lengths={lengths}: give the shortest length first, then the longest")
        if not dtype.is_floating_point:
            raise ValueError(f"dtype={dtype}: the numbers lie between 0 and 1, so give a floating-point type")
        self.size, self.seed, self.dtype = size, seed, dtype
        self.shortest, self.longest = shortest, longest
        self._cache: dict[int, tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the (length, 2) numbers and markers, and the () sum of the two marked numbers."""
        index = int(index)
        if not 0 <= index < self.size:
            raise IndexError(f"there is no sequence {index}: give an index from 0 to {self.size - 1}")
        if index not in self._cache:
            generator = self._generator(index)
            length = self._length(generator)
            half = length // 2
            marked = [int(generator.random() * half), half + int(generator.random() * (length - half))]
            features = numpy.zeros((length, 2))
            features[:, 0] = generator.random(length)
            features[marked, 1] = 1
            sequence = torch.from_numpy(features).to(self.dtype)
            self._cache[index] = sequence, sequence[marked[0], 0] + sequence[marked[1], 0]
        return self._cache[index]

    @cached_property
    def lengths(self) -> Tensor:
        """(size,) int64: the length of every sequence, computed without generating the sequences."""
        return torch.tensor([self._length(self._generator(index)) for index in range(self.size)])

    def batch(self, indices: Iterable[int]) -> Batch:
        """Return these sequences, padded to the longest one. Only the last valid step of each counts."""
        items = [self[index] for index in indices]
        if not items:
            return self.batch([0]).rows([]).trimmed()
        sequences, answers = zip(*items, strict=True)
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        mask = torch.arange(int(lengths.max()))[:, None] == lengths - 1
        return Batch(pad_sequence(list(sequences)), mask * torch.stack(answers), lengths, mask)

    def _length(self, generator: numpy.random.Generator) -> int:
        """Return the length of a sequence, which is the first number drawn from its generator."""
        return self.shortest + int(generator.random() * (self.longest - self.shortest + 1))

    def _generator(self, index: int) -> numpy.random.Generator:
        # We call only random(): numpy has changed how its other methods use the bits.
        return numpy.random.default_rng([self.seed, index])


def at_last_padded_step(batch: Batch) -> Batch:
    """A common mistake: return the same batch, read at the last row, after the padding, instead of each sequence's end.

    The counted step of every sequence, and its target, move to row steps - 1.
    """
    if not bool((batch.mask.sum(dim=0) == 1).all()):
        raise ValueError("some sequences count at no step or at several: give a batch of the adding problem")
    targets, mask = torch.zeros_like(batch.targets), torch.zeros_like(batch.mask)
    targets[-1] = batch.targets.where(batch.mask, 0).sum(dim=0)
    mask[-1] = True
    return Batch(batch.inputs, targets, batch.lengths, mask)
