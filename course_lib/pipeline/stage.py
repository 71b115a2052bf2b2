"""One rank of a pipeline: its blocks, its messages to other ranks, and what a forward pass saves for the backward pass.

A split backward pass first computes the gradients of inputs and states, which other stages wait for, and later the
gradients of the weights, which no stage waits for. Each block then has a separate graph, so that the second part of its
backward pass runs through no other block. The cost depends on the block:

- an embedding has no gradient for its inputs: all of its work is in the second part;
- a matrix (`Project`) does one multiplication in each part: together they cost as much as the whole;
- an LSTM layer must go back through all its steps before either gradient is known. If it runs step by step
  (float64 on a CPU), autograd goes through them once for the inputs and *again* for the weights. If the layer is one
  operator (cuDNN, oneDNN), PyTorch has no way to ask for the weights alone: the chain would run twice. In that case
  the first part computes both gradients, and nothing is left for the second: the result is the same, but splitting
  gains nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.core.batch import Batch
from course_lib.core.model import Loss, SequenceModel, State, States
from course_lib.model_parallel.placement import Placement, check_placement
from course_lib.model_parallel.point_to_point import PendingMessage, connect, receive, send
from course_lib.pipeline.actions import Action, Layout
from course_lib.pipeline.simulation import ActionCosts
from course_lib.runtime.machine import device

TAGS = {"F": 1, "B": 2}  # keep activations and gradients between two ranks apart
TIME_TAGS = {"F": 3, "B": 4}  # the send time, for paced links
ONE_CALL = ("CudnnRnnBackward", "MiopenRnnBackward", "MkldnnRnnLayerBackward")  # autograd nodes that cover all steps

Channel = tuple[str, bool]  # activations (F) or gradients (B), and whether the sending stage has an odd number
Finish = Callable[[Tensor], Tensor]  # what the model's last part does with its outputs: the loss
StateGradients = Mapping[int, State]  # by the block's place
Roots = list[tuple[Tensor, Tensor]]  # where a backward pass starts: a tensor and its gradient


@dataclass(frozen=True)
class VirtualStage:
    """One part of the model on a rank, which may have several."""

    part: SequenceModel
    position: int  # among all parts of the model
    positions: int
    width: int  # of its inputs: numbers per step and sequence
    width_out: int

    @property
    def is_first(self) -> bool:
        return self.position == 0

    @property
    def is_last(self) -> bool:
        return self.position == self.positions - 1

    @cached_property
    def blocks(self) -> list[SequenceModel]:
        """The same part, split into one model per block."""
        return [self.part.part(index, index + 1) for index, _ in self.part.numbered()]


@dataclass(frozen=True)
class Stage:
    """One rank's blocks, and their positions in the pipeline."""

    part: SequenceModel  # all of the rank's blocks
    virtual: tuple[VirtualStage, ...]
    loss: Loss
    index: int
    ranks: tuple[int, ...]  # of all stages, in order
    pace: ActionCosts | None
    groups: Mapping[Channel, Any]  # a process group for each, or None
    autocast: torch.dtype | None = None

    @classmethod
    def of(
        cls,
        model: SequenceModel,
        placement: Placement,
        index: int,
        ranks: Iterable[int],
        loss: Loss,
        pace: ActionCosts | None = None,
        layout: Layout | None = None,
        autocast: torch.dtype | None = None,
    ) -> Stage:
        """Return the stage at `index` of the pipeline on `ranks`. Only its blocks move to the device.

        `placement` sets which blocks are at which position. If `layout` has virtual stages, there are more positions
        than ranks.
        """
        ranks = tuple(ranks)
        layout = layout or Layout(len(ranks))
        if layout.virtual > 1 and placement.stages != layout.positions:
            raise ValueError(
                f"a placement on {placement.stages} parts for {layout.stages} stages of {layout.virtual} virtual "
                f"stages: cut the model into {layout.positions} consecutive parts, numbered from 0 in the model's order"
            )
        check_placement(placement, model, layout.positions)
        widths, virtual = [block.width for _, block in model.numbered()], []
        for number in range(layout.virtual):
            position = layout.position(index, number)
            start, stop = placement.parts[position]
            part = model.part(start, stop).to(device())
            width = widths[start - 1] if start else 0
            virtual.append(VirtualStage(part, position, layout.positions, width, widths[stop - 1]))
        blocks = sorted(block for virtual_stage in virtual for block in virtual_stage.part.numbered())
        part = virtual[0].part if len(virtual) == 1 else SequenceModel(dict(blocks))
        return cls(part, tuple(virtual), loss, index, ranks, pace, _groups(ranks, layout), autocast)

    @property
    def dtype(self) -> torch.dtype:
        return next(self.part.parameters()).dtype

    @property
    def message_dtype(self) -> torch.dtype:
        return self.autocast or self.dtype

    def precision(self) -> contextlib.AbstractContextManager:
        """Return the context in which the forward pass and the loss run."""
        return torch.autocast(device().type, dtype=self.autocast) if self.autocast else contextlib.nullcontext()

    def send(self, tensor: Tensor, kind: str, to: int) -> list[PendingMessage]:
        """Start sending activations or gradients to the stage at `to`, along with the time if links are paced."""
        peer, group, sends = self.ranks[to], self.groups[kind, self.index % 2 == 1], []
        if self.pace and self.pace.link and tensor.numel():
            now = torch.tensor([time.monotonic()], dtype=torch.float64, device=tensor.device)
            sends.append(send(now, peer, TIME_TAGS[kind], group))
        return [*sends, send(tensor, peer, TAGS[kind], group)]

    def receive(self, piece: Batch, action: Action, source: int) -> Callable[[], Tensor]:
        """Start receiving what `action` needs for this piece from the stage at `source`. Returns what waits for it."""
        virtual, kind, seconds = self.virtual[action.virtual], action.kind, self.pace.link if self.pace else 0.0
        shape = (piece.steps, piece.sequences, virtual.width if kind == "F" else virtual.width_out)
        peer, group, target = self.ranks[source], self.groups[kind, source % 2 == 1], piece.mask.device
        sent_at: PendingMessage | None = None  # by a clock that both ranks read: they must be on one machine
        if seconds and piece.sequences:
            sent_at = receive((1,), torch.float64, target, peer, TIME_TAGS[kind], group)
        pending = receive(shape, self.message_dtype, target, peer, TAGS[kind], group)

        def wait() -> Tensor:
            start = sent_at.wait().item() if sent_at else None
            content = pending.wait()
            if start is not None:  # over a paced link, a message arrives `seconds` after it was sent
                time.sleep(max(0.0, start + seconds - time.monotonic()))
            return content

        return wait


def _groups(ranks: tuple[int, ...], layout: Layout) -> dict[Channel, Any]:
    """Return a process group for each channel with NCCL, which has no tags; None with backends that have them.

    There are four channels, no matter how many stages there are. Messages in a channel keep their order, which is the
    same on all ranks, so a channel groups messages that rarely wait for each other: the messages that a stage sends
    don't queue behind those that it receives from its neighbors.
    """
    channels = [(kind, odd) for kind in TAGS for odd in (False, True)]
    if "cuda:nccl" not in dist.get_backend_config():
        return dict.fromkeys(channels)
    groups: dict[Channel, Any] = {channel: dist.new_group() for channel in channels}
    stages = [layout.stage_at(position)[0] for position in range(layout.positions)]
    forward = dict.fromkeys((a, b) for a, b in pairwise(stages) if a != b)
    pairs = {"F": forward, "B": [(b, a) for a, b in forward]}
    for (kind, odd), group in groups.items():
        connect(((ranks[a], ranks[b]) for a, b in pairs[kind] if a % 2 == odd), group)
    return groups


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
        _run_backward(roots)


@dataclass
class BlockGraph:
    """One block's forward pass, whose graph starts at that block's inputs and state."""

    place: int
    weights: Sequence[Tensor]  # those that are trained
    inputs: Tensor
    state: Sequence[Tensor]
    outputs: Tensor
    new_state: Sequence[Tensor]


@dataclass
class SplitPass:
    """A forward pass with one graph per block, for a backward pass in two parts."""

    inputs: Tensor
    states: States
    outputs: Tensor
    new_states: States
    graphs: list[BlockGraph]  # in the model's order
    rest: list[tuple[Roots, Sequence[Tensor]]] = field(default_factory=list)  # for the second part: roots and weights

    @classmethod
    def run(
        cls, blocks: Sequence[SequenceModel], inputs: Tensor, states: States, finish: Finish | None = None
    ) -> SplitPass:
        """Run the forward pass of consecutive parts with one block each."""
        graphs, new_states, outputs = [], {}, inputs
        for number, block in enumerate(blocks):
            ((place, _),) = block.numbered()
            block_inputs = outputs if number == 0 else outputs.detach().requires_grad_(outputs.requires_grad)
            outputs, new_state = block(block_inputs, states)
            new_states |= new_state
            weights = [weight for weight in block.parameters() if weight.requires_grad]
            state, final = states.get(place, ()), new_state.get(place, ())
            graphs.append(BlockGraph(place, weights, block_inputs, state, outputs, final))
        if finish:
            outputs = graphs[-1].outputs = finish(outputs)
        return cls(inputs, states, outputs, new_states, graphs)

    def backward(self, gradient: Tensor, state_gradients: StateGradients) -> None:
        """Run the first part: inputs and states get their gradients in `.grad`."""
        passed: Tensor | None = gradient  # None once nothing before needs a gradient
        for graph in reversed(self.graphs):
            roots: Roots = [(graph.outputs, passed)] if passed is not None else []
            roots += zip(graph.new_state, state_gradients.get(graph.place, ()), strict=False)
            if any(root.requires_grad for root, _ in roots):
                leaves = [leaf for leaf in (graph.inputs, *graph.state) if leaf.requires_grad]
                node, later = graph.outputs.grad_fn, graph.weights
                if node is not None and node.name().startswith(ONE_CALL):
                    leaves, later = [*leaves, *graph.weights], []
                if later:
                    self.rest.insert(0, (roots, later))
                if leaves:
                    _run_backward(roots, leaves, keep_graph=bool(later))
            passed = graph.inputs.grad

    def second_part(self) -> Callable[[], None]:
        """Return what accumulates the weight gradients. It keeps in memory only what it needs of this pass.

        A weight shared by two blocks gets both contributions at once.
        """
        roots = [root for roots, _ in self.rest for root in roots]
        return partial(_run_backward, roots, [weight for _, weights in self.rest for weight in weights])


def _run_backward(roots: Roots, leaves: Sequence[Tensor] | None = None, keep_graph: bool = False) -> None:
    """Run a backward pass from the roots that need a gradient: all of a part's weights may be frozen."""
    trained = [(root, gradient) for root, gradient in roots if root.requires_grad]
    if trained:
        tensors, gradients = zip(*trained, strict=True)
        torch.autograd.backward(tensors, gradients, retain_graph=keep_graph, inputs=leaves)
