"""The LSTM as a list of blocks that can be cut between blocks, into pipeline stages, and in time, into chunks of steps.

Every block takes (steps, sequences, ...) and a state, and returns (steps, sequences, width) and the new state.
State is never hidden inside a module: the caller passes the state in and gets the new one back, so that a sequence can
run in chunks, on any rank, and the gradient flows back through the state from chunk to chunk.

Losses are sums with counts. Means don't add up: the mean of two ranks' means is not the mean over their tokens, unless
both have the same number. Sums and counts do add up, over micro-batches, time chunks, ranks and stages. We divide once,
at the very end, by the global count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from course_lib.core.batch import Batch
from course_lib.core.fast import Stack, run_lstm, stack_of
from course_lib.core.memory import EMBEDDING, LSTM, PROJECTION, BlockSize
from course_lib.runtime.machine import device

State = tuple[Tensor, Tensor]  # (h, c), each (1, sequences, hidden)
States = dict[int, State]  # by the block's place in the model; blocks without a state are left out


class Embed(nn.Module):
    """(steps, sequences) tokens to (steps, sequences, hidden)."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, hidden)
        self.width = hidden

    @property
    def block_size(self) -> BlockSize:
        return BlockSize(EMBEDDING, self.table.num_embeddings, self.table.embedding_dim)

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, None]:
        return self.table(inputs), None


class Project(nn.Module):
    """(steps, sequences, inputs) to (steps, sequences, width): the first block for numbers, and the last block."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width)
        self.width = width

    @property
    def block_size(self) -> BlockSize:
        return BlockSize(PROJECTION, self.linear.in_features, self.linear.out_features)

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, None]:
        return self.linear(inputs), None


class Recurrent(nn.Module):
    """One LSTM layer: (steps, sequences, hidden) and (h, c) to the same shapes. On a GPU, cuDNN runs it.

    The forget gate starts open (bias 1): a new LSTM remembers everything, and learns what to forget.
    """

    def __init__(self, hidden: int, forget_bias: float = 1.0) -> None:
        super().__init__()
        self.lstm = nn.LSTM(hidden, hidden)
        self.width = hidden
        with torch.no_grad():
            bias_ih, bias_hh = self.lstm.get_parameter("bias_ih_l0"), self.lstm.get_parameter("bias_hh_l0")
            bias_ih[hidden : 2 * hidden].fill_(forget_bias)
            bias_hh[hidden : 2 * hidden].zero_()

    @property
    def block_size(self) -> BlockSize:
        return BlockSize(LSTM, self.lstm.hidden_size, self.lstm.hidden_size)

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        if inputs.is_cuda or torch.is_autocast_enabled("cpu"):
            return run_lstm(self.lstm, inputs, state)
        return self.lstm(inputs, state)


class SequenceModel(nn.Module):
    """Consecutive blocks of a model, each under its place in the *whole* model.

    A part has the same parameter names as the whole, so you can merge the state dicts of parts. Adjacent LSTM layers
    may run in one call: `one_call` turns this on or off; None decides by their size.
    """

    def __init__(self, blocks: Mapping[int, nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({str(place): block for place, block in blocks.items()})
        self.one_call: bool | None = None

        def run_of(numbered: tuple[int, Any]) -> Any:
            place, block = numbered
            return block.width if type(block) is Recurrent else (place,)

        # Adjacent LSTM layers of the same width make one run, each other block a run of its own.
        self._runs = [tuple(run) for _, run in groupby(self.numbered(), key=run_of)]
        self._stacks: dict[int, Stack] = {}  # by the place of their first layer

    def forward(self, inputs: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        """Return the outputs of the last block, and the new state of every block that has one."""
        outputs, states, new_states = inputs, states or {}, {}
        for run in self._runs:
            may_stack = len(run) > 1 and (outputs.is_cuda or self.one_call)
            if may_stack and (stack := stack_of(self._stacks, run, outputs, self.one_call)):
                outputs, run_states = stack(outputs, [states.get(place) for place, _ in run])
                new_states |= zip((place for place, _ in run), run_states, strict=True)
                continue
            for place, block in run:
                outputs, state = block(outputs, states.get(place))
                if state is not None:
                    new_states[place] = state
        return outputs, new_states

    def numbered(self) -> list[tuple[int, Any]]:
        """Return (place, block) pairs, in order."""
        return [(int(place), block) for place, block in self.blocks.items()]

    def part(self, start: int, stop: int) -> SequenceModel:
        """Return the blocks at places `start` to `stop - 1`: the same modules, not copies."""
        chosen = {place: block for place, block in self.numbered() if start <= place < stop}
        if not chosen:
            raise ValueError(f"part({start}, {stop}): there is no block there; this model has {len(self)}")
        return SequenceModel(chosen)

    def __len__(self) -> int:
        return len(self.blocks)


def lstm_model(
    *,
    features: int | None = None,
    vocabulary: int | None = None,
    hidden: int = 64,
    layers: int = 2,
    outputs: int | None = None,
) -> SequenceModel:
    """Return a model with `layers` LSTM layers. For tokens, `outputs` defaults to the size of the vocabulary."""
    if (features is None) == (vocabulary is None):
        raise ValueError("give features= for sequences of numbers, or vocabulary= for tokens, but not both")
    if min(hidden, layers) < 1:
        raise ValueError(f"hidden={hidden}, layers={layers}: a model needs at least one of each")
    way_in = Embed(vocabulary, hidden) if vocabulary is not None else Project(features or 0, hidden)
    way_out = Project(hidden, outputs or vocabulary or 1)
    return SequenceModel(dict(enumerate([way_in, *(Recurrent(hidden) for _ in range(layers)), way_out])))


def detach_states(states: States) -> States:
    """Return the same states, detached from their graph: the gradient stops here."""
    return {place: (h.detach(), c.detach()) for place, (h, c) in states.items()}


Loss = Callable[[Tensor, Batch], tuple[Tensor, Tensor]]  # (outputs, batch) to (summed loss, counted steps)


def squared_error(outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the sum of squared errors over the counted steps, and their number. `outputs` is (steps, sequences, 1)."""
    # If a step does not count, its output is replaced by the target, so even a NaN there adds nothing.
    counted = outputs.squeeze(-1).where(batch.mask, batch.targets)
    return functional.mse_loss(counted, batch.targets, reduction="sum"), batch.mask.sum()


def cross_entropy(outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the sum of cross-entropies over the counted steps, and their number.

    `outputs` is (steps, sequences, classes).
    """
    ignored = -100
    targets = batch.targets.masked_fill(~batch.mask, ignored)
    total = functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=ignored, reduction="sum")
    return total, batch.mask.sum()


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """Restore the random number generators after this context, in which you may draw numbers and set seeds."""
    target = device()
    with torch.random.fork_rng([target] if target.type == "cuda" else []):
        yield


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restore the model's buffers and the random number generators at the end of this context."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with own_random_numbers():
        try:
            yield
        finally:
            for buffer, values in before:
                buffer.data.copy_(values)  # hidden from autograd: a graph may have saved it, as BatchNorm's does
