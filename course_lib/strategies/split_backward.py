"""What a forward pass leaves for its backward pass: one graph, or one for each block, gone through in two parts.

A split backward pass makes the gradients of inputs and states first, which others wait for, and those of the weights
later, which nobody waits for. Each block then has a graph of its own, so that a later part goes through no block but
its own. What that costs depends on the block:

- an embedding has no gradient for its inputs: all of its work is in the second part;
- a matrix (`Project`) multiplies once for each part: together they cost what the whole costs;
- an LSTM layer must go back through all its steps before either gradient is known. Where it runs step by step
  (float64 on a CPU), autograd goes through them once for the inputs and *again* for the weights. Where one call runs
  all steps (cuDNN, oneDNN), PyTorch offers no other way either: the call would be made twice. There the first part
  makes both gradients in one call, and nothing is left for the second: the same answer at the price of a whole backward
  pass, and nothing gained. `apart=True` splits it all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from course_lib.lstm.model import SequenceModel, State, States

ONE_CALL = ("CudnnRnnBackward", "MiopenRnnBackward", "MkldnnRnnLayerBackward")  # nodes that go back through all steps

Finish = Callable[[Tensor], Tensor]  # what the last part of a model does with its outputs: the loss
StateGradients = Mapping[int, State]  # by the place of the block
Ends = list[tuple[Tensor, Tensor]]  # where a backward pass begins: a tensor, and its gradient


@dataclass
class WholePass:
    """A forward pass and its one graph, from `inputs` and `states` to `outputs` and `new_states`."""

    inputs: Tensor
    states: States
    outputs: Tensor
    new_states: States

    @classmethod
    def run(cls, part: SequenceModel, inputs: Tensor, states: States, finish: Finish | None = None) -> WholePass:
        """The forward pass of a part of the model."""
        outputs, new_states = part(inputs, states)
        return cls(inputs, states, finish(outputs) if finish else outputs, new_states)

    def backward(self, gradient: Tensor, state_gradients: StateGradients) -> None:
        """All gradients: those of inputs and states are then in their `.grad`, those of weights have been added."""
        ends: Ends = [(self.outputs, gradient)]
        for place, given in state_gradients.items():
            ends += zip(self.new_states[place], given, strict=True)
        ends = _trained(ends)
        if ends:  # a part may have nothing to train
            _go_back(ends)


@dataclass
class BlockGraph:
    """One block's forward pass, whose graph begins at its own inputs and state."""

    block: SequenceModel  # of this one block
    inputs: Tensor
    state: Sequence[Tensor]
    outputs: Tensor
    new_state: Sequence[Tensor]
    apart: bool  # also where one call makes both gradients
    ends: Ends = field(default_factory=list)
    left: Sequence[Tensor] = field(default_factory=list)  # weights whose gradient is not made yet

    def backward_inputs(self, gradient: Tensor | None, state_gradient: Sequence[Tensor]) -> Tensor | None:
        """The gradient of the inputs, and into their `.grad` those of the state; None where nobody wants it."""
        ends: Ends = [(self.outputs, gradient)] if gradient is not None else []
        ends = _trained([*ends, *zip(self.new_state, state_gradient, strict=False)])
        if not ends:
            return None
        weights = [weight for weight in self.block.parameters() if weight.requires_grad]
        together = not self.apart and _is_one_call(self.outputs)
        wanted = [leaf for leaf in (self.inputs, *self.state) if leaf.requires_grad] + (weights if together else [])
        self.left = [] if together else weights
        if wanted:
            _go_back(ends, wanted, keep_graph=bool(self.left))
        self.ends = ends if self.left else []
        return self.inputs.grad


@dataclass
class SplitPass:
    """A forward pass with a graph for each block, for a backward pass in two parts."""

    inputs: Tensor
    states: States
    outputs: Tensor
    new_states: States
    graphs: list[BlockGraph]  # in the order of the model

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
        """The forward pass of consecutive parts of one block each."""
        graphs, new_states, outputs = [], {}, inputs
        for number, block in enumerate(blocks):
            ((place, _),) = block.numbered()
            given = outputs if number == 0 else outputs.detach().requires_grad_(outputs.requires_grad)
            outputs, ended = block(given, states)
            new_states |= ended
            graphs.append(BlockGraph(block, given, states.get(place, ()), outputs, ended.get(place, ()), apart))
        if finish:
            outputs = graphs[-1].outputs = finish(outputs)
        return cls(inputs, states, outputs, new_states, graphs)

    def backward(self, gradient: Tensor, state_gradients: StateGradients) -> None:
        """The first part: the gradients of inputs and states, which are then in their `.grad`."""
        passed: Tensor | None = gradient
        for graph in reversed(self.graphs):
            ((place, _),) = graph.block.numbered()
            passed = graph.backward_inputs(passed, state_gradients.get(place, ()))

    def second_part(self) -> SecondPart:
        """What is left to do after the first part. It keeps no more of this pass than it needs."""
        ends = [end for graph in self.graphs for end in graph.ends]
        return SecondPart(ends, [weight for graph in self.graphs for weight in graph.left])


@dataclass
class SecondPart:
    """The rest of a split backward pass: from the ends of the blocks' graphs to their weights."""

    ends: Ends
    weights: Sequence[Tensor]

    def backward(self) -> None:
        """Add the gradients of the weights. A weight that two blocks share gets both at once."""
        if self.ends:
            _go_back(self.ends, self.weights)


def _trained(ends: Ends) -> Ends:
    return [(end, gradient) for end, gradient in ends if end.requires_grad]


def _go_back(ends: Ends, wanted: Sequence[Tensor] | None = None, keep_graph: bool = False) -> None:
    tensors, gradients = zip(*ends, strict=True)
    torch.autograd.backward(tensors, gradients, retain_graph=keep_graph, inputs=wanted)


def _is_one_call(outputs: Tensor) -> bool:
    return outputs.grad_fn is not None and outputs.grad_fn.name().startswith(ONE_CALL)
