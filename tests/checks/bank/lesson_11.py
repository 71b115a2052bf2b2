"""Banked answers to the capstone: our solution, bent in one place each, and other ways to write it."""

from __future__ import annotations

import copy
import sys

import cloudpickle
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.utils import parameters_to_vector

from course_lib.core.model import SequenceModel
from course_lib.core.shards import Shard
from course_lib.core.strategy import Strategy, broadcast_weights, sum_over_ranks
from course_lib.data_parallel.ddp import DDP
from course_lib.model_parallel.placement import Placement
from course_lib.pipeline.named_schedules import gpipe, naive
from course_lib.sharding.hybrid import Hybrid
from tests.checks.bank import NEVER_WAITS, right, wrong
from tests.checks.tried import names_in

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks need not read the notebook for it
MyHybrid = names_in("11", stubs=False)["MyHybrid"]


@wrong("11.1", says="mean of means")
class DividesPerReplica(MyHybrid):
    def forward_backward(self, batch):
        total, count, states = super().forward_backward(batch)
        own = batch.mask.sum().clamp(min=1)
        for parameter in self.model.parameters():
            parameter.grad *= count / own / self.replicas
        return total, count, states


@wrong("11.1", says="mean of means")
class DividesPerMicroBatch(MyHybrid):
    def forward_backward(self, batch):
        count = sum_over_ranks(batch.mask.sum(), self.same_stage)
        self.times = count / (self.micro_batches * self.replicas)
        return super().forward_backward(batch)

    def checked_loss(self, outputs, batch):
        total, count = super().checked_loss(outputs, batch)
        return total / count.clamp(min=1) * self.times, count


@wrong("11.1", says="not summed over the replicas")
class ReplicasApart(MyHybrid):
    def reduce_gradients(self):
        pass


@wrong("11.1", says="you take their mean")
class AveragesTheReplicas(MyHybrid):
    def reduce_gradients(self):
        super().reduce_gradients()
        for parameter in self.model.parameters():
            parameter.grad /= self.replicas


@wrong("11.1", says="too small by a factor of the number of stages")
class CountsOnEveryStage(MyHybrid):
    def forward_backward(self, batch):
        self.same_stage, column = None, self.same_stage
        try:
            return super().forward_backward(batch)
        finally:
            self.same_stage = column


@wrong("11.1", says="clipped by its own norm")
class ClipsEachStage(MyHybrid):
    def clip_gradients(self):
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)


@wrong("11.1", says="do not begin with rank 0's weights")
class EachItsOwnWeights(MyHybrid):
    def __init__(self, model, *arguments, **options):
        mine = [parameter.detach().clone() for parameter in model.parameters()]
        super().__init__(model, *arguments, **options)
        kept = {id(parameter) for parameter in self.model.parameters()}
        for parameter, own in zip(model.parameters(), mine, strict=True):
            if id(parameter) in kept:
                parameter.data.copy_(own)


@wrong("11.1", says="do not count at all")
class LosesTheLastMicroBatch(MyHybrid):
    def checked_loss(self, outputs, batch):
        total, count = super().checked_loss(outputs, batch)
        self.seen = (getattr(self, "seen", 0) + 1) % self.micro_batches
        return total * (self.seen > 0 or self.micro_batches == 1), count


@wrong("11.1", says="begins at a state of zeros")
class NeverCarries(MyHybrid):
    def forward_backward(self, batch):
        self.states = {}
        return super().forward_backward(batch)


@wrong("11.1", says="the optimizer starts from scratch")
class HidesItsOptimizer(MyHybrid):
    def __init__(self, model, optimizer, *arguments, **options):
        super().__init__(model, optimizer, *arguments, **options)
        self.hidden = optimizer(self.model.parameters())

    def step(self, batch):
        shown, self.optimizer = self.optimizer, self.hidden
        try:
            return super().step(batch)
        finally:
            self.optimizer = shown


@wrong("11.1", says="does not continue from the saved weights")
class ComputesWithACopy(MyHybrid):
    """The copy gets the weights after every update, but not after a checkpoint."""

    def forward_backward(self, batch):
        with torch.no_grad():
            for parameter, copied in zip(self.model.parameters(), self.copied, strict=True):
                parameter.copy_(copied)
        return super().forward_backward(batch)

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.copied = [parameter.detach().clone() for parameter in self.model.parameters()]

    def step(self, batch):
        result = super().step(batch)
        self.copied = [parameter.detach().clone() for parameter in self.model.parameters()]
        return result


@wrong("11.1", says="that is data parallelism")
class WholeModelEverywhere(DDP):
    def __init__(self, model, optimizer, loss, *, replicas, micro_batches, **options):
        super().__init__(model, optimizer, loss, **options)
        self.micro_batches = 1


@wrong("11.1", says="one of the course's own classes: Hybrid")
class IsOurs(Hybrid):
    pass


def of_our_source(parts=("pipeline.stage", "pipeline.pipeline", "sharding.hybrid")):
    """Run the source of the course's own strategy under another name, and return its class."""
    import importlib
    import types
    from pathlib import Path

    for part in parts:
        text = Path(importlib.import_module(f"course_lib.{part}").__file__).read_text()
        for other in parts:
            text = text.replace(f"from course_lib.{other} import", f"from mine_{other.replace('.', '_')} import")
        name = f"mine_{part.replace('.', '_')}"
        module = sys.modules[name] = types.ModuleType(name)
        exec(text.replace("class Hybrid", "class MyHybrid"), module.__dict__)
    return module.MyHybrid


@wrong("11.1", says="one of the course's own classes: a copy of")
def our_source_under_another_name(*arguments, **options):
    return of_our_source()(*arguments, **options)


@wrong("11.1", says="one of the course's own classes: a copy of")
def derives_from_our_source(*arguments, **options):
    class Mine(of_our_source()):
        def share(self, batch):
            return batch.shard(self.replica, self.replicas)

    return Mine(*arguments, **options)


@wrong("11.1", says="all forwards come before the first backward")
class AllForwardsFirst(MyHybrid):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        stages = dist.get_world_size(self.model_group)
        self.actions = gpipe(stages, self.micro_batches).stages[0]


@wrong("11.1", says="A rank still has the whole model")
class KeepsTheWholeModel(MyHybrid):
    def __init__(self, model, *arguments, **options):
        super().__init__(model, *arguments, **options)
        self.whole = [model]


@wrong("11.1", says=NEVER_WAITS)
class NeverWaitsForTheSum(MyHybrid):
    def reduce_gradients(self):
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad, group=self.same_stage, async_op=True)


@right("11.1")
class OneAtATime(MyHybrid):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.actions = naive(1, self.micro_batches).stages[0]


@right("11.1")
class AllForwardsOfAFew(MyHybrid):
    """All forwards first, of as many micro-batches at a time as the budget allows."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        stages, todo = dist.get_world_size(self.model_group), gpipe(1, self.micro_batches).stages[0]
        groups = [range(first, first + stages) for first in range(0, self.micro_batches, stages)]
        self.actions = [action for group in groups for action in todo if action.micro_batch in group]


@right("11.1")
class FlatSum(MyHybrid):
    def reduce_gradients(self):
        gradients = [parameter.grad for parameter in self.model.parameters()]
        flat = parameters_to_vector(gradients)
        dist.all_reduce(flat, group=self.same_stage)
        for gradient, part in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


@right("11.1")
class GroupsOfAMesh(MyHybrid):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        stages = dist.get_world_size() // self.replicas
        mesh = init_device_mesh("cpu", (self.replicas, stages), mesh_dim_names=("replica", "stage"))
        self.model_group, self.same_stage = mesh.get_group("stage"), mesh.get_group("replica")


@right("11.1")
class NeighboringSequences(MyHybrid):
    """Other sequences for each replica, and without the padding that nobody needs."""

    def share(self, batch):
        share = batch.rows(torch.arange(batch.sequences).tensor_split(self.replicas)[self.replica])
        return share if self.carry_state else share.trimmed()


@right("11.1")
class CopiesItsBlocks(Strategy):
    """Nothing of the base class but what puts the whole together; one micro-batch at a time, with plain messages."""

    def __init__(self, model, optimizer, loss, *, replicas, micro_batches, carry_state=False, clip=None):
        rank, stages = dist.get_rank(), dist.get_world_size() // replicas
        self.replicas, self.replica, self.stage, self.last = replicas, rank // stages, rank % stages, stages - 1
        broadcast_weights(model)
        blocks = Placement.of_cuts(len(model), range(1, stages)).blocks_of(self.stage)
        own = {place: copy.deepcopy(block) for place, block in model.numbered() if place in blocks}
        self.width = dict(model.numbered())[max(blocks[0] - 1, 0)].width
        super().__init__(SequenceModel(own), optimizer, loss, carry_state=carry_state, clip=clip)
        for replica in range(replicas):
            row = dist.new_group([replica * stages + stage for stage in range(stages)])
            self.model_group = row if replica == self.replica else self.model_group
        self.columns = [dist.new_group(list(range(stage, dist.get_world_size(), stages))) for stage in range(stages)]
        self.micro_batches = micro_batches

    def share(self, batch):
        return batch.shard(self.replica, self.replicas)

    def shards(self):
        return {name: Shard.whole(parameter) for name, parameter in self.model.named_parameters()}

    def step(self, batch):
        facts = torch.tensor([0.0, float(batch.mask.sum())], dtype=torch.float64)
        dist.all_reduce(facts, group=self.columns[self.stage])
        count, ended, rank = facts[1].item(), {}, dist.get_rank()
        self.optimizer.zero_grad()
        for place, piece in enumerate(batch.micro_batches(self.micro_batches)):
            inputs = piece.inputs
            if self.stage > 0:
                inputs = torch.empty(piece.steps, piece.sequences, self.width, dtype=torch.float64)
                dist.recv(inputs, rank - 1)
                inputs.requires_grad_()
            outputs, ended[place] = self.model(inputs, self.states.get(place))
            if self.stage < self.last:
                dist.send(outputs.detach().contiguous(), rank + 1)
                gradient = torch.empty(outputs.shape, dtype=torch.float64)
                dist.recv(gradient, rank + 1)
                outputs.backward(gradient)
            else:
                total, _ = self.loss(outputs, piece)
                facts[0] += total.detach()
                (total / count).backward()
            if self.stage > 0:
                dist.send(inputs.grad, rank - 1)
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad, group=self.columns[self.stage])
        self.clip_gradients()
        self.optimizer.step()
        if self.carry_state:
            self.states = {m: {k: (h.detach(), c.detach()) for k, (h, c) in s.items()} for m, s in ended.items()}
        dist.all_reduce(facts[:1])
        return facts[0] / count, int(count)


@wrong("11.1", says="the optimizer is created anew in every update")
class RenewsTheOptimizer(MyHybrid):
    def __init__(self, model, optimizer, loss, **options):
        self.make = optimizer
        super().__init__(model, optimizer, loss, **options)

    def reduce_gradients(self):
        super().reduce_gradients()
        self.optimizer = self.make(self.model.parameters())
