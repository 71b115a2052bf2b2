"""A strategy of a learner's own, as it would stand in a cell of a notebook."""

from dataclasses import replace

import torch
import torch.distributed as dist

from course_lib.core.strategy import Strategy, broadcast_weights, sum_over_ranks


class LocalSGD(Strategy):
    """Every rank trains on its share alone; every few updates, the ranks average their weights."""

    def __init__(self, model, optimizer, loss, *, every: int = 2, **options):
        broadcast_weights(model)
        super().__init__(model, optimizer, loss, **options)
        self.every, self.gradient_scale = every, self.ranks

    def share(self, batch):
        return batch.shard(self.rank, self.ranks)

    def sum_counts(self, total, count):
        return sum_over_ranks(torch.stack([total, count.to(total.dtype)])).unbind()

    def step(self, batch):
        result = super().step(batch)
        if self.updates % self.every == 0:
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= self.ranks
        return result

    def full_gradients(self):  # of the global batch: the mean of what the ranks have computed
        return {name: sum_over_ranks(own) / self.ranks for name, own in super().full_gradients().items()}

    def shards(self):  # between two averages, every rank has a model of its own
        return {name: replace(shard, copy=self.rank) for name, shard in super().shards().items()}
