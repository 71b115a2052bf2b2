"""Sharding: every rank stores a piece of each parameter, and gathers a block only while that block runs."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.core.batch import Batch, check_at_least
from course_lib.core.fast import keep_weights_where_they_are
from course_lib.core.model import Loss, SequenceModel
from course_lib.core.shards import Shard, all_gather, is_sharded, local_rows, reduce_scatter
from course_lib.core.strategy import MakeOptimizer, StatesByMicroBatch, broadcast_weights
from course_lib.data_parallel.ddp import DataParallel, accumulate
from course_lib.runtime.machine import device
from course_lib.runtime.trace import span
from course_lib.sharding.mesh import mesh_of

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


class FSDP(DataParallel):
    """PyTorch's `fully_shard` on every block, with the loss divided once, by the global count.

    A rank gets the same sequences as with DDP, but stores only its rows of the parameters, gradients and optimizer
    state. Before a block runs, its parameters are gathered from all ranks; afterwards they are dropped. The backward
    pass gathers them again, and a reduce-scatter sums the gradients, so that each rank gets its rows.

    With `reshard_after_forward=False` the parameters stay whole from the forward to the backward pass: this saves one
    all-gather, but the whole model must fit in memory. With `replicas`, the model is sharded over ranks / replicas
    ranks, and the replicas sum their gradients: hybrid sharding. The ranks of one replica are neighbors, on one node if
    they fit. With `micro_batches`, gradients stay whole until the last micro-batch and are sent once. With `autocast`,
    blocks are gathered in this dtype, which halves the bytes to send and store. Gradients are summed in float32.
    """

    applies_precision = True  # blocks are gathered in the requested precision

    def __init__(
        self,
        model: SequenceModel,
        optimizer: MakeOptimizer,
        loss: Loss,
        *,
        replicas: int = 1,
        reshard_after_forward: bool = True,
        micro_batches: int = 1,
        **options: Any,
    ) -> None:
        check_at_least(1, "a share is cut into at least one micro-batch", micro_batches=micro_batches)
        self.mesh = mesh_of(replicas, "shard")
        model = model.to(device())
        broadcast_weights(model)  # fully_shard takes each rank's rows from the weights of that rank
        shard_blocks(model, self.mesh, reshard_after_forward, options.get("autocast"))
        super().__init__(model, optimizer, loss, **options)
        self.model_group = self.mesh.get_group("shard")
        self.micro_batches, self.shares = micro_batches, self.ranks

    def forward_backward(self, batch: Batch) -> tuple[Tensor, Tensor, StatesByMicroBatch]:
        if self.micro_batches == 1:
            return super().forward_backward(batch)
        return accumulate(self, batch, self.without_sending)

    def precision(self) -> contextlib.AbstractContextManager:
        """Return a context that does nothing: gathered blocks are already in the requested precision."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def without_sending(self) -> Iterator[None]:
        """In this context, backward passes leave whole gradients on each rank and send nothing."""
        root = sharded_modules(self.model)[0]  # its setting also applies to the modules inside it
        root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            root.set_requires_gradient_sync(True)

    def shards(self) -> dict[str, Shard]:
        """Return this rank's rows of each parameter."""
        for module in sharded_modules(self.model):
            module.reshard()  # it may still be gathered after a forward pass without a backward pass
        place, ranks = self.mesh.get_local_rank("shard"), self.mesh["shard"].size()
        return {
            name: Shard(parameter, tuple(parameter.shape), (local_rows(len(parameter), place, ranks),))
            for name, parameter in self.model.named_parameters()
        }


def shard_blocks(
    model: SequenceModel, mesh: DeviceMesh, reshard_after_forward: bool, autocast: torch.dtype | None = None
) -> None:
    """Shard each block separately, so that only one is gathered at a time. Blocks that share a weight form one unit."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    users = Counter(id(parameter) for block in model.blocks.values() for parameter in block.parameters())
    *_, last_block = model.blocks.values()
    policy = MixedPrecisionPolicy(param_dtype=autocast, reduce_dtype=torch.float32 if autocast else None)
    for block in model.blocks.values():
        keep_weights_where_they_are(block)
        if all(users[id(parameter)] == 1 for parameter in block.parameters()):
            # The backward pass starts with the last block: if we dropped it, it would be gathered again immediately.
            drop = reshard_after_forward and block is not last_block
            fully_shard(block, mesh=mesh, reshard_after_forward=drop, mp_policy=policy)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard_after_forward, mp_policy=policy)
    # PyTorch warns about in-place writes if the last block returns a view. We never write to it.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    model.one_call = False  # one call for several layers would need all of them gathered at once
    for module in sharded_modules(model):
        module.set_gradient_divide_factor(1.0)  # a sum: each rank's loss is already divided by the global count
        module.set_force_sum_reduction_for_comms(True)  # gloo can sum, but cannot scale during a collective


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """Return the modules that are gathered and dropped separately."""
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@dataclass(frozen=True)
class GatherPace:
    """The minimum seconds of each operation on a block, for ranks that have to share a device."""

    gather: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    scatter: float = 0.0


@dataclass
class HeldBytes:
    """The bytes held now, and their peak."""

    now: int = 0
    peak: int = 0

    def add(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


class GatherWatch:
    """Records what happens to each block of a sharded model, as spans labeled with the block's place.

    The spans are `all-gather`, `forward` and `drop`, then `all-gather`, `backward`, `drop` and `reduce-scatter`.
    All-gathers block here; on a GPU they overlap with the computation. `gathered` counts the bytes of gathered blocks
    (the buffers that the messages fill), `gradients` the bytes of whole gradients until they are reduced, and `passing`
    both of these plus the shards of reduced gradients. `pace` is one pace for all blocks, or maps each place to one.
    """

    def __init__(self, strategy: FSDP, pace: GatherPace | Mapping[int, GatherPace] | None = None) -> None:
        if strategy.mesh["shard"].size() == 1:
            raise ValueError("every rank has the whole model, so nothing is gathered: give more ranks than replicas")
        self.gathered, self.gradients, self.reduced, self.passing = (HeldBytes() for _ in range(4))
        gathered_alone = set(sharded_modules(strategy.model))
        for place, block in strategy.model.numbered():
            if block not in gathered_alone:
                raise ValueError(
                    f"block {place} shares a weight, so it isn't gathered separately: watch a model that shares none"
                )
            _WatchedBlock(str(place), block, self, pace[place] if isinstance(pace, Mapping) else pace or GatherPace())


class _WatchedBlock:
    """The hooks of one block, around the hooks of `fully_shard` that gather and drop it."""

    def __init__(self, place: str, block: Any, watch: GatherWatch, pace: GatherPace) -> None:
        self.place, self.watch, self.pace = place, watch, pace
        self.bytes = {"gathered": 0, "gradients": 0, "reduced": 0}
        self.working = contextlib.ExitStack()  # the span of the pass that runs now
        block.set_custom_all_gather(_Collective(self.all_gather))
        block.set_custom_reduce_scatter(_Collective(self.reduce_scatter))
        block.register_forward_pre_hook(self.before_forward)
        block.register_forward_hook(lambda *_: self.working.close(), prepend=True)
        block.register_forward_hook(self.after_forward)

    def holds(self, what: str, size: int) -> None:
        """Note that the block now holds so many bytes: gathered, of its whole gradient, or of its reduced gradient."""
        change, self.bytes[what] = size - self.bytes[what], size
        getattr(self.watch, what).add(change)
        self.watch.passing.add(change)

    def begin(self, name: str, seconds: float) -> None:
        self.working.close()  # the backward pass of a micro-batch that sent nothing
        self.working.enter_context(span(name, at_least=seconds, label=self.place))

    def drop(self) -> None:
        with span("drop", label=self.place):
            self.holds("gathered", 0)

    def all_gather(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        self.holds("gathered", output_tensor.nbytes)
        with span("all-gather", at_least=self.pace.gather, label=self.place):
            all_gather(output_tensor, input_tensor, group)

    def before_forward(self, *_: Any) -> None:
        self.holds("reduced", 0)  # the optimizer has freed the last update's gradients
        self.begin("forward", self.pace.forward)

    def after_forward(self, block: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if all(is_sharded(parameter) for parameter in block.parameters()):
            self.drop()
        if outputs[0].requires_grad:  # this hook runs after the hook that gathers the block again
            outputs[0].register_hook(self.before_backward)

    def before_backward(self, gradient: Tensor) -> None:
        self.holds("gradients", self.bytes["gathered"])
        self.begin("backward", self.pace.backward)

    def reduce_scatter(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        self.working.close()  # the backward pass
        self.drop()
        self.holds("gradients", input_tensor.nbytes)
        with span("reduce-scatter", at_least=self.pace.scatter, label=self.place):
            reduce_scatter(output_tensor, input_tensor, op, group)
        self.holds("gradients", 0)
        self.holds("reduced", output_tensor.nbytes)


@dataclass(frozen=True)
class _Collective:
    """A collective as `fully_shard` expects it: what runs it, and how to allocate its buffer."""

    run: Callable[..., None]

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, *arguments: Any, **options: Any) -> None:
        self.run(*arguments, **options)
