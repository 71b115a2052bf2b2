"""Check whether your own model gives the same result in pieces, by trying each block before the first update.

A strategy that cuts a batch into shares or micro-batches, or its sequences into chunks of time, assumes that a block
computes each sequence separately and keeps what it needs from earlier steps in its state. The course's blocks do. Any
other block would train without an error, but with different gradients than in one process: attention over all steps, or
a bidirectional layer, sees only its chunk when it runs in chunks.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from course_lib.lstm.gpt import GPTBlock, Readout
from course_lib.lstm.model import Embed, Project, Recurrent, SequenceModel, own_random_numbers

KNOWN = (Embed, Project, Recurrent, GPTBlock, Readout)
STEPS, SEQUENCES = 6, 4  # in a trial
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-3}  # relative to the largest number


class CannotBeCut(ValueError):
    """A block that the strategy would train incorrectly. The message says which one, why, and what to change."""


@dataclass(frozen=True)
class Block:
    """A block at its place in the whole model. `inputs` is the width of its inputs; None means the batch's inputs."""

    place: int
    module: nn.Module
    inputs: int | None

    def __str__(self) -> str:
        return f"block {self.place} ({type(self.module).__name__})"


def check_carries(model: SequenceModel, *, chunks: int = 1, carry_state: bool = False) -> None:
    """Refuse what a GPT block cannot do: carry a state from batch to batch or, without a cache, to the next chunk."""
    for place, block in model.numbered():
        if isinstance(block, GPTBlock) and carry_state:
            raise CannotBeCut(
                f"carry_state=True: block {place} is a GPT's, and has no state of a fixed size to carry from batch to "
                "batch; all it could carry is every key and value so far. Leave out carry_state, or train an LSTM"
            )
        if isinstance(block, GPTBlock) and chunks > 1 and not block.cache:
            raise CannotBeCut(
                f"chunks={chunks}: block {place} is a GPT's, and its later steps look back at keys and values of the "
                "earlier chunks. Make the model with gpt_model(cache=True), which keeps them, or leave out chunks"
            )


def check_cuts(blocks: Sequence[Block], inputs: Tensor, *, chunks: int, pieces: int, quiet: bool = False) -> None:
    """Refuse blocks whose gradients change when a batch is cut into `chunks` of time or `pieces`.

    `inputs` are a batch's inputs: (steps, sequences, ...). Statistics over a batch, like BatchNorm's, are a judgment
    call: if each piece computes its own statistics, you get a warning, unless `quiet`.
    """
    for block in blocks:
        if chunks == 1 and pieces == 1:
            return
        with own_random_numbers(), _without_dropout():
            trial = Trial.prepare(block, inputs)
            if isinstance(trial, Exception):
                if not quiet:
                    warnings.warn(
                        f"{block} cannot be run on {STEPS} steps of {SEQUENCES} sequences on a CPU "
                        f"({_sentence(trial)}), so we cannot know whether it gives the same result in pieces: "
                        "compare it with same_as_one_process",
                        stacklevel=2,
                    )
                continue
            if chunks > 1 and (problem := trial.changed_by(_in_chunks, "two chunks of time")):
                raise CannotBeCut(
                    f"chunks={chunks}: {block} {problem}. It must keep what it needs from earlier steps in its state: "
                    "leave out chunks, or change the block"
                )
            if pieces > 1 and (problem := trial.changed_by(_in_pieces, "two parts of a batch", modes=(False,))):
                raise CannotBeCut(
                    f"{block} {problem}: it mixes sequences, and this strategy cuts a batch into {pieces} pieces. "
                    "Train it with single and one micro-batch, or change the block"
                )
            if pieces > 1 and not quiet and trial.changed_by(_in_pieces, "two parts of a batch", modes=(True,)):
                warnings.warn(
                    f"{block} computes statistics over the sequences it sees at once, like BatchNorm: here each of "
                    f"{pieces} pieces of a batch has its own, so the result differs from that of one process",
                    stacklevel=2,
                )


Run = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Trial:
    """A copy of a block on the CPU, with inputs for it."""

    module: nn.Module
    inputs: Tensor
    dtype: torch.dtype

    @classmethod
    def prepare(cls, block: Block, inputs: Tensor) -> Trial | Exception:
        """Return a trial in float64 if the block supports it, or else in float32; the error if it cannot be tried."""
        problem = Exception()
        for dtype in TOLERANCES:
            sample = _inputs(inputs) if block.inputs is None else torch.randn(STEPS, SEQUENCES, block.inputs)
            sample = sample.to(dtype) if sample.is_floating_point() else sample
            try:
                trial = cls(copy.deepcopy(block.module).to("cpu", dtype), sample, dtype)
                trial.gradients(_whole, training=True)
                return trial
            except Exception as error:
                problem = error
        return problem

    def changed_by(self, cut: Run, division: str, modes: Sequence[bool] = (False, True)) -> str:
        """Return what `cut` changes, in eval mode (False) and in training mode (True); empty if nothing changes."""
        for training in modes:
            whole = self.gradients(_whole, training)
            if not _same(whole, self.gradients(_whole, training), TOLERANCES[self.dtype]):
                continue  # two identical runs differ because the block draws random numbers: we cannot judge it
            try:
                cut_up = self.gradients(cut, training)
            except Exception as error:
                return f"cannot be run in {division} ({_sentence(error)})"
            if not _same(whole, cut_up, TOLERANCES[self.dtype]):
                changed = "outputs" if not _same(whole[:1], cut_up[:1], TOLERANCES[self.dtype]) else "gradients"
                return f"has different {changed} in {division} than as a whole" + (" in training" if training else "")
        return ""

    def gradients(self, run: Run, training: bool) -> list[Tensor]:
        """Return the outputs, and the gradients of the weights and inputs for a fixed loss."""
        module = copy.deepcopy(self.module).train(training)
        inputs = self.inputs.clone()
        if inputs.is_floating_point():
            inputs.requires_grad_()
        torch.manual_seed(torch.initial_seed() + 1)  # a new seed each time exposes random numbers
        outputs = run(module, inputs)
        weights = torch.linspace(0.5, 1.5, outputs.numel(), dtype=outputs.dtype).reshape(outputs.shape)
        leaves = [tensor for tensor in (*module.parameters(), inputs) if tensor.requires_grad]
        if outputs.requires_grad:
            (outputs * weights).sum().backward()
        return [outputs.detach(), *(tensor.grad for tensor in leaves if tensor.grad is not None)]


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _whole(module: nn.Module, inputs: Tensor) -> Tensor:
    return module(inputs, None)[0]


def _in_chunks(module: nn.Module, inputs: Tensor) -> Tensor:
    middle = len(inputs) // 2
    first_outputs, state = module(inputs[:middle], None)
    return torch.cat([first_outputs, module(inputs[middle:], state)[0]])


def _in_pieces(module: nn.Module, inputs: Tensor) -> Tensor:
    middle = inputs.shape[1] // 2
    return torch.cat([module(part, None)[0] for part in (inputs[:, :middle], inputs[:, middle:])], dim=1)


def _inputs(inputs: Tensor) -> Tensor:
    """Return some steps of some sequences of a batch, at least two of each."""
    sample = inputs[:STEPS, :SEQUENCES].detach().cpu()
    sample = sample if len(sample) > 1 else sample.repeat(2, *[1] * (sample.dim() - 1))
    return sample if sample.shape[1] > 1 else sample.repeat(1, 2, *[1] * (sample.dim() - 2))


def _same(expected: Sequence[Tensor], actual: Sequence[Tensor], tolerance: float) -> bool:
    if len(expected) != len(actual) or any(a.shape != b.shape for a, b in zip(expected, actual, strict=True)):
        return False
    scale = max([1.0, *(tensor.abs().max().item() for tensor in expected if tensor.numel())])
    return all(torch.allclose(a, b, rtol=0, atol=tolerance * scale) for a, b in zip(expected, actual, strict=True))


@contextlib.contextmanager
def _without_dropout() -> Iterator[None]:
    """Turn off dropout in this context: it is random, which is a separate question from mixing sequences."""

    def keep(inputs: Tensor, *_: Any, **__: Any) -> Tensor:
        return inputs

    with mock.patch.object(nn.functional, "dropout", keep):
        yield
