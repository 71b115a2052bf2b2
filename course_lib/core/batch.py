"""Sequences of different lengths in one padded tensor, ways to cut it, and copies to the GPU that overlap with compute.

The layout is time-major everywhere: (steps, sequences, ...). cuDNN uses the same order; the output of an LSTM layer is
then contiguous, so it can be sent to the next pipeline stage; and a chunk of time is a contiguous slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class Batch:
    """Padded sequences, the target of each step, and which steps count.

    `mask` is not the same as the valid steps: in text every valid step counts, in the adding problem only the last one.
    A batch may have no sequences, because a rank's share of a small batch may be empty.
    """

    inputs: Tensor  # (steps, sequences) int64 tokens, or (steps, sequences, features)
    targets: Tensor  # (steps, sequences): the target class or number, or 0 if there is none
    lengths: Tensor  # (sequences,) int64, always on the CPU, where pack_padded_sequence needs them
    mask: Tensor  # (steps, sequences) bool: the steps that count in the loss

    def __post_init__(self) -> None:
        shape, lengths = tuple(self.inputs.shape), self.lengths
        if len(shape) not in (2, 3):
            raise ValueError(f"inputs have shape {shape}: give (steps, sequences) or (steps, sequences, features)")
        if len(shape) == 2 and self.inputs.dtype != torch.int64:
            kind = f"inputs of shape (steps, sequences) hold {self.inputs.dtype}"
            raise ValueError(f"{kind}: give int64 tokens, or add a dimension of features")
        if not self.steps:
            raise ValueError("inputs have no steps: a batch needs at least one, even when it has no sequences")
        for name, tensor in (("targets", self.targets), ("mask", self.mask)):
            if tensor.shape != self.inputs.shape[:2]:
                which = f"{name} has shape {tuple(tensor.shape)}"
                raise ValueError(f"{which}: give one value for each step and sequence of the inputs, {shape[:2]}")
        if self.mask.dtype != torch.bool:
            raise ValueError(f"mask holds {self.mask.dtype}: give torch.bool, True where a step counts")
        if lengths.device.type != "cpu" or lengths.dtype != torch.int64:
            raise ValueError(f"lengths are {lengths.dtype} on {lengths.device}: give int64 on the CPU")
        if tuple(lengths.shape) != (self.sequences,):
            raise ValueError(f"{len(lengths)} lengths: give one for each of the {self.sequences} sequences")
        if self.sequences and not 0 <= int(lengths.min()) <= int(lengths.max()) <= self.steps:
            raise ValueError(f"lengths {lengths.tolist()}: give each from 0 to {self.steps}, the number of steps")

    @property
    def steps(self) -> int:
        """The number of steps in the padded tensor: at least as many as the longest sequence has."""
        return self.inputs.shape[0]

    @property
    def sequences(self) -> int:
        return self.inputs.shape[1]

    @property
    def count(self) -> int:
        """The number of steps that count in the loss: the divisor of a summed loss."""
        return int(self.mask.sum())

    @property
    def valid(self) -> Tensor:
        """(steps, sequences) bool: True where there is data, False where there is padding."""
        device = self.inputs.device
        return torch.arange(self.steps, device=device)[:, None] < self.lengths.to(device)

    @property
    def padding(self) -> float:
        """The fraction of cells that are padding, from 0 to 1."""
        cells = self.steps * self.sequences
        return 1 - int(self.lengths.sum()) / cells if cells else 0.0

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Return this batch on `device`, except for the lengths, which stay on the CPU."""
        tensors = (self.inputs, self.targets, self.mask)
        inputs, targets, mask = (tensor.to(device, non_blocking=non_blocking) for tensor in tensors)
        is_on_device = inputs is self.inputs and targets is self.targets and mask is self.mask
        return self if is_on_device else Batch(inputs, targets, self.lengths, mask)

    def rows(self, indices: Sequence[int] | Tensor) -> Batch:
        """Return a copy of these sequences, in this order, with as many steps as before."""
        indices = torch.as_tensor(indices, device="cpu")
        if len(indices) and (indices.dtype == torch.bool or indices.is_floating_point()):
            raise ValueError(f"rows are chosen by index, not by {indices.dtype}: give integers, as nonzero() returns")
        indices = indices.to(torch.int64)
        # Lengths first: they are on the CPU, where a wrong index is an error. On a GPU it would crash the process.
        lengths = self.lengths.index_select(0, indices)
        indices = indices.to(self.inputs.device)
        inputs, targets, mask = (tensor.index_select(1, indices) for tensor in (self.inputs, self.targets, self.mask))
        return Batch(inputs, targets, lengths, mask)

    def trimmed(self) -> Batch:
        """Return this batch without the steps after the longest sequence's end, but with at least one step."""
        return self.between(0, max([1, *self.lengths.tolist()]))

    def between(self, start: int, stop: int) -> Batch:
        """Return the chunk of time from `start` up to `stop`, as views; sequences that have ended have length 0."""
        if not 0 <= start < stop <= self.steps:
            raise ValueError(f"between({start}, {stop}): give 0 <= start < stop <= {self.steps}, the number of steps")
        chunk = slice(start, stop)
        lengths = (self.lengths - start).clamp(0, stop - start)
        return Batch(self.inputs[chunk], self.targets[chunk], lengths, self.mask[chunk])

    def chunks(self, n: int) -> list[Batch]:
        """Return `n` consecutive chunks of time, as equal as possible."""
        if not 1 <= n <= self.steps:
            raise ValueError(f"chunks({n}): a batch of {self.steps} steps can be cut into 1 to {self.steps} chunks")
        bounds = [int(part[0]) for part in torch.arange(self.steps).tensor_split(n)] + [self.steps]
        return [self.between(start, stop) for start, stop in pairwise(bounds)]

    def micro_batches(self, n: int) -> list[Batch]:
        """Return `n` contiguous groups of sequences, as equal as possible; some are empty if `n` > sequences."""
        check_at_least(1, "a batch is cut into at least one micro-batch", n=n)
        return [self.rows(part) for part in torch.arange(self.sequences).tensor_split(n)]

    def shard(self, rank: int, ranks: int) -> Batch:
        """Return the sequences rank, rank + ranks, rank + 2 * ranks, ..."""
        check_rank(rank, ranks)
        return self.rows(torch.arange(self.sequences)[rank::ranks])


def pad(sequences: list[Tensor], targets: list[Tensor], masks: list[Tensor] | None = None) -> Batch:
    """Return one batch, as long as the longest sequence; shorter ones are padded with zeros.

    Each sequence is (length,) or (length, features), each target and mask (length,). Without masks every valid
    step counts.
    """
    if not sequences:
        raise ValueError("there is no sequence to pad: for an empty batch, take rows([]) of another batch")
    lengths = [len(sequence) for sequence in sequences]
    if masks is None:
        masks = [torch.ones(length, dtype=torch.bool, device=sequences[0].device) for length in lengths]
    if 0 in lengths:
        raise ValueError(f"sequence {lengths.index(0)} has no steps: leave it out")
    for name, tensors in (("targets", targets), ("masks", masks)):
        if [tuple(values.shape) for values in tensors] != [(length,) for length in lengths]:
            raise ValueError(f"{name} do not match the sequences: give one per sequence, of shape (length,)")
    return Batch(pad_sequence(sequences), pad_sequence(targets), torch.tensor(lengths), pad_sequence(masks))


def copied_ahead(tensors: Iterable[Tensor], device: torch.device | str) -> Iterator[Tensor]:
    """Yield each tensor on `device`; while the caller computes with one, the next is already being copied.

    A GPU runs work in the order in which it was queued on a *stream*. A copy on the compute stream waits for everything
    queued before it; on a second stream it overlaps, if the tensor is in pinned memory. On a CPU there is nothing to
    copy, and the tensors are yielded unchanged.
    """
    if torch.device(device).type != "cuda":
        yield from tensors
        return
    copying, computing = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    ahead = None
    for tensor in chain(tensors, [None]):
        arrived = ahead
        if arrived is not None:
            computing.wait_stream(copying)  # work queued from now on waits for this copy
            arrived.record_stream(computing)  # do not reuse its memory before this stream is done with it
        if tensor is not None:
            with torch.cuda.stream(copying):
                ahead = tensor.to(device, non_blocking=True)
        if arrived is not None:
            yield arrived


def check_at_least(least: int, problem: str, **arguments: int) -> None:
    """Raise ValueError for an argument below `least`; `problem` completes the message."""
    for name, value in arguments.items():
        if value < least:
            raise ValueError(f"{name}={value}: {problem}")


def check_rank(rank: int, ranks: int) -> None:
    """Raise ValueError unless the rank is from 0 to ranks - 1."""
    check_at_least(1, "data needs at least one rank", ranks=ranks)
    if not 0 <= rank < ranks:
        raise ValueError(f"rank={rank}: with ranks={ranks}, give a rank from 0 to {ranks - 1}")
