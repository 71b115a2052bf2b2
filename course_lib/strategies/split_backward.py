"""What a forward pass saves for its backward pass: one graph, or one per block for a backward pass in two parts.

A split backward pass first computes the gradients of inputs and states, which other stages wait for, and later the
gradients of the weights, which no stage waits for. Each block has a separate graph, so that the second part of its
backward pass runs through no other block. The cost depends on the block:

- an embedding has no gradient for its inputs: all of its work is in the second part;
- a matrix (`Project`) does one multiplication in each part: together they cost as much as the whole;
- an LSTM layer must go back through all its steps before either gradient is known. If it runs step by step
  (float64 on a CPU), autograd goes through them once for the inputs and *again* for the weights. If the layer is one
  operator (cuDNN, oneDNN), PyTorch has no way to ask for the weights alone: the chain would run twice. In that case
  the first part computes both gradients, and nothing is left for the second: the result is the same, but splitting
  gains nothing. `apart=True` splits it anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from course_lib.lstm.model import SequenceModel, State, States

ONE_CALL = ("CudnnRnnBackward", "MiopenRnnBackward", "MkldnnRnnLayerBackward")  # autograd nodes that cover all steps

Finish = Callable[[Tensor], Tensor]  # what the model's last part does with its outputs: the loss
StateGradients = Mapping[int, State]  # by the block's place
Roots = list[tuple[Tensor, Tensor]]  # where a backward pass starts: a tensor and its gradient


@dataclass
class WholePass:
    """A forward pass and its single graph, from `inputs` and `states` to `outputs` and `new_states`."""

    inputs: Tensor
    states: States
    outputs: Tensor
    new_states: States

    @classmethod
    def run(cls, part: SequenceModel, inputs: Tensor, states: States, finish: Finish | None = None) -> WholePass:
        """Run the forward pass of a part of the model."""
        outputs, new_states = part(inputs, states)
        return cls(inputs, states, finish(outputs) if finish else outputs, new_states)

    def backward(self, gradient: Tensor, state_gradients: StateGradients) -> None:
        """Compute all gradients. Inputs and states get theirs in `.grad`; the weights' gradients accumulate."""
        roots: Roots = [(self.outputs, gradient)]
        for place, gradients in state_gradients.items():
            roots += zip(self.new_states[place], gradients, strict=True)
        roots = _trained(roots)
        if roots:  # all of a part's weights may be frozen
            _go_back(roots)


@dataclass
class BlockGraph:
    """One block's forward pass, whose graph starts at that block's inputs and state."""

    block: SequenceModel  # with only this block
    inputs: Tensor
    state: Sequence[Tensor]
    outputs: Tensor
    new_state: Sequence[Tensor]
    apart: bool  # split even if one call computes both gradients
    roots: Roots = field(default_factory=list)
    pending: Sequence[Tensor] = field(default_factory=list)  # weights whose gradients are not computed yet

    def backward_inputs(self, gradient: Tensor | None, state_gradient: Sequence[Tensor]) -> Tensor | None:
        """Return the gradient of the inputs, or None if they need none. The state gets its gradients in `.grad`."""
        roots: Roots = [(self.outputs, gradient)] if gradient is not None else []
        roots = _trained([*roots, *zip(self.new_state, state_gradient, strict=False)])
        if not roots:
            return None
        weights = [weight for weight in self.block.parameters() if weight.requires_grad]
        together = not self.apart and _is_one_call(self.outputs)
        leaves = [leaf for leaf in (self.inputs, *self.state) if leaf.requires_grad] + (weights if together else [])
        self.pending = [] if together else weights
        if leaves:
            _go_back(roots, leaves, keep_graph=bool(self.pending))
        self.roots = roots if self.pending else []
        return self.inputs.grad


@dataclass
class SplitPass:
    """A forward pass with one graph per block, for a backward pass in two parts."""

    inputs: Tensor
    states: States
    outputs: Tensor
    new_states: States
    graphs: list[BlockGraph]  # in the model's order

    @classmethod
    def run(
        cls,
        blocks: Sequence[SequenceModel],
        inputs: Tensor,
        states: States,
        finish: Finish | None = None,
        *,
        apart: bool = False,
    ) -> SplitPass:
        """Run the forward pass of consecutive parts with one block each."""
        graphs, new_states, outputs = [], {}, inputs
        for number, block in enumerate(blocks):
            ((place, _),) = block.numbered()
            block_inputs = outputs if number == 0 else outputs.detach().requires_grad_(outputs.requires_grad)
            outputs, new_state = block(block_inputs, states)
            new_states |= new_state
            state, final = states.get(place, ()), new_state.get(place, ())
            graphs.append(BlockGraph(block, block_inputs, state, outputs, final, apart))
        if finish:
            outputs = graphs[-1].outputs = finish(outputs)
        return cls(inputs, states, outputs, new_states, graphs)

    def backward(self, gradient: Tensor, state_gradients: StateGradients) -> None:
        """Run the first part: inputs and states get their gradients in `.grad`."""
        passed: Tensor | None = gradient
        for graph in reversed(self.graphs):
            ((place, _),) = graph.block.numbered()
            passed = graph.backward_inputs(passed, state_gradients.get(place, ()))

    def second_part(self) -> SecondPart:
        """Return the remaining work, which keeps in memory only what it needs of this pass."""
        roots = [root for graph in self.graphs for root in graph.roots]
        return SecondPart(roots, [weight for graph in self.graphs for weight in graph.pending])


@dataclass
class SecondPart:
    """The rest of a split backward pass: from the ends of the blocks' graphs to their weights."""

    roots: Roots
    weights: Sequence[Tensor]

    def backward(self) -> None:
        """Accumulate the weight gradients. A weight shared by two blocks gets both contributions at once."""
        if self.roots:
            _go_back(self.roots, self.weights)


def _trained(roots: Roots) -> Roots:
    return [(root, gradient) for root, gradient in roots if root.requires_grad]


def _go_back(roots: Roots, leaves: Sequence[Tensor] | None = None, keep_graph: bool = False) -> None:
    tensors, gradients = zip(*roots, strict=True)
    torch.autograd.backward(tensors, gradients, retain_graph=keep_graph, inputs=leaves)


def _is_one_call(outputs: Tensor) -> bool:
    return outputs.grad_fn is not None and outputs.grad_fn.name().startswith(ONE_CALL)
