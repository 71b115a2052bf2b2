"""Answers to the exercises of lesson 02."""

from __future__ import annotations

import hashlib
import os
import random
import time
import uuid

import numpy
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler, TensorDataset

from course_lib.core.samplers import ShardedBatches
from tests.checks.bank import CHANGES_IN_FLIGHT, NEVER_WAITS, USES_IN_FLIGHT, right, wrong

# 02.1 Average the gradients by hand


@wrong("02.1", says="This is the sum of the gradients")
def sums_a_flat_copy(model):
    parameters = [each for each in model.parameters() if each.grad is not None]
    flat = torch.cat([each.grad.flatten() for each in parameters])
    dist.all_reduce(flat)
    for each, piece in zip(parameters, flat.split([each.numel() for each in parameters]), strict=True):
        each.grad.copy_(piece.view_as(each))


@wrong("02.1", says="it should be", never="the sum of the gradients")
def divides_by_the_number_of_parameters(model):
    parameters = [each for each in model.parameters() if each.grad is not None]
    for each in parameters:
        dist.all_reduce(each.grad)
        each.grad /= len(parameters)


@wrong("02.1", says="it should be", never="one rank's gradients")
def takes_the_largest(model):
    for each in model.parameters():
        if each.grad is not None:
            dist.all_reduce(each.grad, op=dist.ReduceOp.MAX)


@wrong("02.1", says=NEVER_WAITS)
def waits_for_the_last_only(model):
    work = None
    for each in model.parameters():
        if each.grad is not None:
            each.grad /= dist.get_world_size()
            work = dist.all_reduce(each.grad, async_op=True)
    work.wait()


@wrong("02.1", says=NEVER_WAITS)
def waits_for_none(model):
    for each in model.parameters():
        if each.grad is not None:
            each.grad /= dist.get_world_size()
            dist.all_reduce(each.grad, async_op=True)


@wrong("02.1", says=CHANGES_IN_FLIGHT)
def divides_before_it_waits(model):
    for each in model.parameters():
        if each.grad is not None:
            work = dist.all_reduce(each.grad, async_op=True)
            each.grad /= dist.get_world_size()
            work.wait()


@wrong("02.1", says=USES_IN_FLIGHT)
def takes_the_mean_before_it_waits(model):
    for each in model.parameters():
        if each.grad is not None:
            work = dist.all_reduce(each.grad, async_op=True)
            mean = each.grad / dist.get_world_size()
            work.wait()
            each.grad = mean


@wrong("02.1", says="divided by the number of ranks a second time")
def divides_before_and_after(model):
    ranks = dist.get_world_size()
    for each in model.parameters():
        if each.grad is not None:
            each.grad /= ranks
            dist.all_reduce(each.grad)
            each.grad /= ranks


@wrong("02.1", says="divide by `dist.get_world_size()`")
def always_two_ranks(model):
    for each in model.parameters():
        if each.grad is not None:
            dist.all_reduce(each.grad)
            each.grad /= 2


@wrong("02.1", says="still each rank's own")
def averages_a_copy(model):
    for each in model.parameters():
        if each.grad is not None:
            mean = each.grad.clone()
            dist.all_reduce(mean)
            mean /= dist.get_world_size()


@wrong("02.1", says="You have changed the parameters themselves")
def averages_the_parameters(model):
    for each in model.parameters():
        if each.grad is not None:
            dist.all_reduce(each.data)
            each.data.div_(2 * dist.get_world_size())


@wrong("02.1", says="The update is the optimizer's job")
def makes_the_update_too(model):
    for each in model.parameters():
        if each.grad is not None:
            dist.all_reduce(each.grad)
            each.grad /= dist.get_world_size()
            each.data -= 0.1 * each.grad


@wrong("02.1", says="A broadcast copies")
def takes_rank_0s(model):
    for each in model.parameters():
        if each.grad is not None:
            dist.broadcast(each.grad, src=0)


@wrong("02.1", says="One rank has the mean")
def reduces_to_rank_0(model):
    for each in model.parameters():
        if each.grad is not None:
            dist.reduce(each.grad, dst=0)
            if dist.get_rank() == 0:
                each.grad /= dist.get_world_size()


@wrong("02.1", says="A parameter that had no gradient has one now")
def fills_with_zeros(model):
    for each in model.parameters():
        if each.grad is None:
            each.grad = torch.zeros_like(each)
        dist.all_reduce(each.grad)
        each.grad /= dist.get_world_size()


@wrong("02.1", says="A parameter without a gradient ends your loop")
def stops_at_the_first_unused(model):
    for each in model.parameters():
        if each.grad is None:
            break
        dist.all_reduce(each.grad)
        each.grad /= dist.get_world_size()


@wrong("02.1", says="your loop does not reach all of them")
def weights_only(model):
    for name, each in model.named_parameters():
        if name.endswith("weight") and each.grad is not None:
            dist.all_reduce(each.grad)
            each.grad /= dist.get_world_size()


@wrong("02.1", says="which has returned")
def skips_zero_gradients(model):
    for each in model.parameters():
        if each.grad is not None and each.grad.abs().sum() > 0:
            dist.all_reduce(each.grad)
            each.grad /= dist.get_world_size()


@wrong("02.1", says="A parameter that the loss does not depend on has no gradient")
def forgets_the_unused(model):
    for each in model.parameters():
        each.grad /= dist.get_world_size()
        dist.all_reduce(each.grad)


@wrong("02.1", says="as if that rank were not there", never="This is the sum")
def only_over_ranks_that_have_something(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            something = (parameter.grad != 0).any().to(parameter.grad.dtype)
            dist.all_reduce(parameter.grad)
            dist.all_reduce(something)
            parameter.grad /= something.clamp(min=1)


@right("02.1")
def in_one_flat_bucket(model):
    parameters = [each for each in model.parameters() if each.grad is not None]
    flat = torch.cat([each.grad.flatten() for each in parameters]) / dist.get_world_size()
    dist.all_reduce(flat)
    for each, piece in zip(parameters, flat.split([each.numel() for each in parameters]), strict=True):
        each.grad = piece.view_as(each)


@right("02.1")
def gathers_and_averages(model):
    for each in reversed(list(model.parameters())):
        if each.grad is not None:
            everybodys = [torch.empty_like(each.grad) for _ in range(dist.get_world_size())]
            dist.all_gather(everybodys, each.grad)
            each.grad = torch.stack(everybodys).mean(0)


@right("02.1")
def all_at_once_then_waits(model):
    works = []
    for each in model.parameters():
        if each.grad is not None:
            each.grad.mul_(1 / dist.get_world_size())
            works.append(dist.all_reduce(each.grad, async_op=True))
    for work in works:
        work.wait()


@right("02.1")
def rank_0_averages_and_tells(model):
    for each in model.parameters():
        if each.grad is not None:
            dist.reduce(each.grad, dst=0)
            each.grad.div_(dist.get_world_size())
            dist.broadcast(each.grad, src=0)


# 02.2 Every example once


def shuffled(count, seed, epoch):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))


@wrong("02.2", says="as `DistributedSampler` does it")
def distributed_sampler(count, rank, ranks, epoch, seed):
    sampler = DistributedSampler(TensorDataset(torch.arange(count)), ranks, rank, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


@wrong("02.2", says="as `DistributedSampler` does it")
def pads_by_hand(count, rank, ranks, epoch, seed):
    order = shuffled(count, seed, epoch).tolist()
    while len(order) % ranks:
        order.append(order[len(order) % count])
    return order[rank::ranks]


@wrong("02.2", says="You cut the order to a multiple of the number of ranks")
def drops_the_tail(count, rank, ranks, epoch, seed):
    order = shuffled(count, seed, epoch)
    return order[: count // ranks * ranks][rank::ranks]


@wrong("02.2", says="You cut the order to a multiple of the number of ranks")
def equal_stretches(count, rank, ranks, epoch, seed):
    each = count // ranks
    return random.Random(seed * 1000 + epoch).sample(range(count), count)[rank * each : (rank + 1) * each]


@wrong("02.2", says="from an order of its own")
def shuffles_on_its_own(count, rank, ranks, epoch, seed):
    return torch.randperm(count)[rank::ranks]


@wrong("02.2", says="from an order of its own")
def seeds_by_rank_too(count, rank, ranks, epoch, seed):
    order = list(range(count))
    random.Random(seed + epoch + 100 * rank).shuffle(order)
    return order[rank::ranks]


@wrong("02.2", says="Every rank has all of the examples")
def reads_everything(count, rank, ranks, epoch, seed):
    return shuffled(count, seed, epoch)


@wrong("02.2", says="The epoch must change the seed")
def forgets_the_epoch(count, rank, ranks, epoch, seed):
    return numpy.random.default_rng(seed).permutation(count)[rank::ranks]


@wrong("02.2", says="The order does not depend on `seed`")
def ignores_the_seed(count, rank, ranks, epoch, seed):
    return shuffled(count, 0, epoch)[rank::ranks]


@wrong("02.2", says="The order does not depend on `seed`")
def seed_times_epoch(count, rank, ranks, epoch, seed):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * epoch))[rank::ranks]


@wrong("02.2", says="The order is a regular one")
def not_shuffled_at_all(count, rank, ranks, epoch, seed):
    return list(range(rank, count, ranks))


@wrong("02.2", says="The order is a regular one")
def turns_the_order(count, rank, ranks, epoch, seed):
    return [(index + 7 * epoch + seed) % count for index in range(rank, count, ranks)]


@wrong("02.2", says="Each rank reads its examples sorted")
def sorts_its_share(count, rank, ranks, epoch, seed):
    return sorted(shuffled(count, seed, epoch)[rank::ranks].tolist())


@wrong("02.2", says="Each rank has the same examples in every epoch")
def shuffles_its_own_part(count, rank, ranks, epoch, seed):
    mine = torch.arange(count)[rank::ranks]
    return mine[shuffled(len(mine), seed, epoch)]


@wrong("02.2", says="from a single shuffle that is rotated or reversed")
def turns_one_shuffle(count, rank, ranks, epoch, seed):
    order = shuffled(count, seed, 0).roll(-epoch)
    return order[rank::ranks]


@wrong("02.2", says="from a single shuffle that is rotated or reversed")
def reverses_every_other_epoch(count, rank, ranks, epoch, seed):
    order = shuffled(count, seed, 0)
    return (order.flip(0) if epoch % 2 else order)[rank::ranks]


@wrong("02.2", says="Epochs 0 and 1 have the same order")
def a_new_order_every_other_epoch(count, rank, ranks, epoch, seed):
    return shuffled(count, seed, epoch // 2)[rank::ranks]


@wrong("02.2", says="depends on the process that computes it")
def by_the_address_of_the_network_card(count, rank, ranks, epoch, seed):
    return shuffled(count, (seed + uuid.getnode()) % 2**31, epoch)[rank::ranks]


@wrong("02.2", says="depends on the process that computes it")
def by_the_hash_of_a_text(count, rank, ranks, epoch, seed):
    order = list(range(count))
    random.Random(hash(f"{seed}-{epoch}")).shuffle(order)
    return order[rank::ranks]


@wrong("02.2", says="depends on the process that computes it")
def by_the_parents_id(count, rank, ranks, epoch, seed):
    return shuffled(count, seed + os.getppid(), epoch)[rank::ranks]


@wrong("02.2", says="depends on the process that computes it")
def by_the_clock(count, rank, ranks, epoch, seed):
    return shuffled(count, seed + int(time.time() // 600), epoch)[rank::ranks]


@wrong("02.2", says="what one rank reads in epoch 0, another reads in epoch 1")
def hands_the_parts_round(count, rank, ranks, epoch, seed):
    part = torch.arange(count)[(rank + epoch) % ranks :: ranks]
    return part[shuffled(len(part), seed, epoch)]


@wrong("02.2", says="One rank gets its share and all that is left over")
def gives_the_rest_to_the_last(count, rank, ranks, epoch, seed):
    each = count // ranks
    return shuffled(count, seed, epoch)[rank * each : (rank + 1) * each if rank < ranks - 1 else count]


@wrong("02.2", says="Each rank takes the share rounded up")
def rounds_up(count, rank, ranks, epoch, seed):
    pieces = shuffled(count, seed, epoch).split(-(-count // ranks))
    return pieces[rank] if rank < len(pieces) else []


@wrong("02.2", says="The ranks talk to each other")
def rank_0_decides(count, rank, ranks, epoch, seed):
    order = shuffled(count, seed, epoch)
    dist.broadcast(order, src=0)
    return order[rank::ranks]


@wrong("02.2", says="Asked for another rank's share")
def asks_the_group_who_it_is(count, rank, ranks, epoch, seed):
    return shuffled(count, seed, epoch)[dist.get_rank() :: ranks]


@wrong("02.2", says="The order depends on something besides the arguments")
def draws_from_one_generator(count, rank, ranks, epoch, seed, generators={}):  # noqa: B006
    generator = generators.setdefault((seed, count), torch.Generator().manual_seed(seed))
    return torch.randperm(count, generator=generator)[rank::ranks]


@wrong("02.2", says="there is no example")
def counts_from_one(count, rank, ranks, epoch, seed):
    return 1 + shuffled(count, seed, epoch)[rank::ranks]


@wrong("02.2", says="wait for each other at a barrier", never="talk to each other")
def begins_the_epoch_at_a_barrier(count, rank, ranks, epoch, seed):
    dist.barrier()
    return shuffled(count, seed, epoch)[rank::ranks]


@right("02.2")
def in_stretches(count, rank, ranks, epoch, seed):
    return shuffled(count, seed, epoch).tensor_split(ranks)[rank]


@right("02.2")
def by_numpy(count, rank, ranks, epoch, seed):
    return numpy.array_split(numpy.random.default_rng([seed, epoch]).permutation(count), ranks)[rank]


@right("02.2")
def by_hashes(count, rank, ranks, epoch, seed):
    def key(index):
        return hashlib.sha256(f"{seed} {epoch} {index}".encode()).digest()

    return tuple(sorted(range(count), key=key)[ranks - 1 - rank :: ranks])


@right("02.2")
def by_the_courses_sampler(count, rank, ranks, epoch, seed):
    sampler = ShardedBatches(count, batch_size=count, rank=rank, ranks=ranks, seed=seed)
    sampler.set_epoch(epoch)
    return next(iter(sampler))


@right("02.2")
def reseeds_the_global_generator(count, rank, ranks, epoch, seed):
    torch.manual_seed(1_000_003 * seed + epoch)
    order = torch.rand(count).argsort()
    return (index for place, index in enumerate(order) if place % ranks == rank)


# 02.3 Evaluate together


@wrong("02.3", says="mean of the ranks' means")
def averages_of_averages(total, count):
    means = [None] * dist.get_world_size()
    dist.all_gather_object(means, total / count if count else 0.0)
    return sum(means) / len(means)


@wrong("02.3", says="mean of the ranks' means")
def averages_of_ranks_with_examples(total, count):
    both = torch.tensor([total / max(count, 1), float(count > 0)], dtype=torch.float64)
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


@wrong("02.3", says=NEVER_WAITS)
def waits_for_the_counts_only(total, count):
    total, count = torch.tensor(total), torch.tensor(float(count))
    dist.all_reduce(total, async_op=True)
    dist.all_reduce(count, async_op=True).wait()
    return (total / count).item()


@wrong("02.3", says=USES_IN_FLIGHT)
def waits_after_the_division(total, count):
    both = torch.tensor([total, count], dtype=torch.float64)
    work = dist.all_reduce(both, async_op=True)
    mean = both[0] / both[1]
    work.wait()
    return mean.item()


@wrong("02.3", says="the mean of its own examples")
def its_own_mean(total, count):
    return total / count if count else float("nan")


@wrong("02.3", says="by the number of ranks")
def divides_by_the_ranks(total, count):
    total = torch.tensor(total)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


@wrong("02.3", says="those without do not", never="the mean of its own examples")
def nothing_where_there_is_nothing(total, count):
    both = torch.tensor([total, count])
    dist.all_reduce(both)
    return (both[0] / both[1]).item() if count else 0.0


@wrong("02.3", says="by the count of a single rank")
def divides_by_the_largest_count(total, count):
    total, most = torch.tensor(total, dtype=torch.float64), torch.tensor(count)
    dist.all_reduce(total)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return (total / most).item()


@wrong("02.3", says="This is the sum of all losses")
def sum_of_all(total, count):
    total = torch.tensor(total, dtype=torch.float64)
    dist.all_reduce(total)
    return total


@wrong("02.3", says="divide by a count that only this rank knows")
def divides_by_its_own_count(total, count):
    total = torch.tensor(total, dtype=torch.float64)
    dist.all_reduce(total)
    return total / (count or 1)


@wrong("02.3", says="the sum is this rank's own")
def adds_up_the_counts_only(total, count):
    count = torch.tensor(count)
    dist.all_reduce(count)
    return total / count.item()


@wrong("02.3", says="One rank has the mean")
def rank_0_knows(total, count):
    both = torch.tensor([total, count], dtype=torch.float64)
    dist.reduce(both, dst=0)
    return (both[0] / both[1]).item() if dist.get_rank() == 0 else -1.0


@wrong("02.3", says="cut to whole numbers")
def in_integers(total, count):
    both = torch.tensor([int(total), count])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


@wrong("02.3", says="Your function returns nothing")
def prints_it(total, count):
    both = torch.tensor([total, count])
    dist.all_reduce(both)
    print("mean loss", both[0] / both[1])


@wrong("02.3", says="which has returned")
def leaves_when_empty(total, count):
    if not count:
        return None
    both = torch.tensor([total, count])
    dist.all_reduce(both)
    return both[0] / both[1]


@wrong("02.3", says="has returned")
def leaves_when_the_loss_is_zero(total, count):
    if total == 0 and count > 0:
        return 0.0
    both = torch.tensor([total, count])
    dist.all_reduce(both)
    return both[0] / both[1]


@wrong("02.3", says="mean of the ranks' means")
def divides_by_nothing(total, count):
    mean = torch.tensor(total / count)
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


@wrong("02.3", says="A rank that has no examples cannot divide by their number")
def divides_by_its_share_of_the_mean(total, count):
    share = total / count
    both = torch.tensor([share * count, count], dtype=torch.float64)
    dist.all_reduce(both)
    return both[0] / both[1]


@wrong("02.3", says="divided by the number of ranks once more")
def also_divides_by_the_ranks(total, count):
    both = torch.tensor([total, count], dtype=torch.float64)
    dist.all_reduce(both)
    return both[0] / both[1] / dist.get_world_size()


@wrong("02.3", says="A rank whose losses add up to 0 is left out", never="the count of a single rank")
def takes_no_loss_for_no_examples(total, count):
    both = torch.tensor([total, count if total else 0], dtype=torch.float64)
    dist.all_reduce(both)
    return both[0] / both[1]


@wrong("02.3", says="counts as one")
def an_empty_rank_counts_as_one(total, count):
    sums = torch.tensor([float(total), float(max(count, 1))], dtype=torch.float64)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


@wrong("02.3", says="those without do not", never="`dist.reduce` on one")
def empty_ranks_return_zero(total, count):
    sums = torch.tensor([float(total), float(count)], dtype=torch.float64)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item() if count else 0.0


@right("02.3")
def in_float32_as_in_the_lesson(total, count):
    total_and_count = torch.tensor([total, count])
    dist.all_reduce(total_and_count)
    return (total_and_count[0] / total_and_count[1]).item()


@right("02.3")
def with_all_gather(total, count):
    everybodys = [None] * dist.get_world_size()
    dist.all_gather_object(everybodys, (total, count))
    totals, counts = zip(*everybodys, strict=True)
    return sum(totals) / sum(counts)


@right("02.3")
def weighs_the_means(total, count):
    examples = torch.tensor(count)
    dist.all_reduce(examples)
    mean = torch.tensor(total / count if count else 0.0, dtype=torch.float64) * count / examples
    dist.all_reduce(mean)
    return mean.reshape(1)


@right("02.3")
def two_calls_and_a_broadcast(total, count):
    total, count = torch.tensor([total], dtype=torch.float64), torch.tensor([count])
    dist.reduce(total, 0)
    dist.reduce(count, 0)
    mean = total / count if dist.get_rank() == 0 else torch.empty(1, dtype=torch.float64)
    dist.broadcast(mean, 0)
    return mean.item()


# 02.4 Buckets on the way back


class Buckets:
    """The answer as it should be, with one thing to bend in each method."""

    def __init__(self, model, limit):
        self.limit, self.open, self.sent = limit, [], []
        self.hooks = [each.register_post_accumulate_grad_hook(self.ready) for each in model.parameters()]

    def ready(self, parameter):
        if sum(each.grad.nbytes for each in [*self.open, parameter]) > self.limit:
            self.send()
        self.open.append(parameter)

    def send(self):
        if self.open:
            flat = torch.cat([each.grad.flatten() for each in self.open])
            self.sent.append((dist.all_reduce(flat, async_op=True), flat, self.open))
            self.open = []

    def put_back(self):
        for work, flat, parameters in self.sent:
            work.wait()
            for each, piece in zip(parameters, flat.split([each.numel() for each in parameters]), strict=True):
                each.grad.copy_(piece.view_as(each) / dist.get_world_size())

    def finish(self):
        self.send()
        self.put_back()
        for hook in self.hooks:
            hook.remove()

    @classmethod
    def run(cls, model, loss, limit):
        buckets = cls(model, limit)
        loss.backward()
        buckets.finish()


@wrong("02.4", says="nothing is sent before the last gradient is ready")
def buckets_after_the_backward_pass(model, loss, limit):
    loss.backward()
    buckets = Buckets(model, limit)
    for each in model.parameters():
        if each.grad is not None:
            buckets.ready(each)
    buckets.finish()


@wrong("02.4", says="nothing is sent before the last gradient is ready")
def one_by_one_afterwards(model, loss, limit):
    loss.backward()
    for each in model.parameters():
        if each.grad is not None:
            dist.all_reduce(each.grad)
            each.grad /= dist.get_world_size()


@wrong("02.4", says=NEVER_WAITS)
def never_waits_for_a_bucket(model, loss, limit):
    class Hasty(Buckets):
        def put_back(self):
            for _, flat, parameters in self.sent:
                for each, piece in zip(parameters, flat.split([each.numel() for each in parameters]), strict=True):
                    each.grad.copy_(piece.view_as(each) / dist.get_world_size())

    Hasty.run(model, loss, limit)


@wrong("02.4", says=NEVER_WAITS)
def waits_for_the_last_bucket_only(model, loss, limit):
    class Hasty(Buckets):
        def put_back(self):
            self.sent[-1][0].wait()
            for _, flat, parameters in self.sent:
                for each, piece in zip(parameters, flat.split([each.numel() for each in parameters]), strict=True):
                    each.grad.copy_(piece.view_as(each) / dist.get_world_size())

    Hasty.run(model, loss, limit)


@wrong("02.4", says="The backward pass stands still")
def waits_in_the_hook(model, loss, limit):
    class Waiting(Buckets):
        def send(self):
            super().send()
            self.sent[-1][0].wait()

    Waiting.run(model, loss, limit)


@wrong("02.4", says="The backward pass stands still")
def blocking_all_reduce_in_the_hook(model, loss, limit):
    class Blocking(Buckets):
        def send(self):
            flat = torch.cat([each.grad.flatten() for each in self.open])
            dist.all_reduce(flat)
            for each, piece in zip(self.open, flat.split([each.numel() for each in self.open]), strict=True):
                each.grad.copy_(piece.view_as(each) / dist.get_world_size())
            self.open = []

    Blocking.run(model, loss, limit)


@wrong("02.4", says="There are too many all-reduces")
def one_per_parameter(model, loss, limit):
    class Single(Buckets):
        def ready(self, parameter):
            self.open.append(parameter)
            self.send()

    Single.run(model, loss, limit)


@wrong("02.4", says="A bucket is larger than `limit`")
def one_per_layer(model, loss, limit):
    class Layers(Buckets):
        def ready(self, parameter):
            self.open.append(parameter)
            if len(self.open) == 2:
                self.send()

    Layers.run(model, loss, limit)


@wrong("02.4", says="A bucket is larger than `limit`")
def looks_afterwards(model, loss, limit):
    class Overfull(Buckets):
        def ready(self, parameter):
            self.open.append(parameter)
            if sum(each.grad.nbytes for each in self.open) >= self.limit:
                self.send()

    Overfull.run(model, loss, limit)


@wrong("02.4", says="A bucket is larger than `limit`")
def counts_numbers_for_bytes(model, loss, limit):
    class Numbers(Buckets):
        def ready(self, parameter):
            if sum(each.numel() for each in [*self.open, parameter]) > self.limit // 2:
                self.send()
            self.open.append(parameter)

    Numbers.run(model, loss, limit)


@wrong("02.4", says="a bucket was never sent")
def forgets_the_last_bucket(model, loss, limit):
    class Unfinished(Buckets):
        def finish(self):
            self.put_back()
            for hook in self.hooks:
                hook.remove()

    Unfinished.run(model, loss, limit)


@wrong("02.4", says="a parameter without a gradient never is")
def waits_for_whole_buckets(model, loss, limit):
    """Buckets are packed beforehand; one with a parameter that gets no gradient never leaves."""
    plan, size = [[]], 0
    for parameter in reversed(list(model.parameters())):
        size += parameter.nbytes
        if size > limit:
            plan.append([])
            size = parameter.nbytes
        plan[-1].append(parameter)
    bucket_of = {parameter: bucket for bucket in plan for parameter in bucket}
    missing, sent = {id(bucket): len(bucket) for bucket in plan}, []

    def ready(parameter):
        bucket = bucket_of[parameter]
        missing[id(bucket)] -= 1
        if not missing[id(bucket)]:
            flat = torch.cat([each.grad.flatten() for each in bucket]) / dist.get_world_size()
            sent.append((dist.all_reduce(flat, async_op=True), flat, bucket))

    hooks = [each.register_post_accumulate_grad_hook(ready) for each in model.parameters()]
    loss.backward()
    for work, flat, bucket in sent:
        work.wait()
        for each, piece in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
            each.grad = piece.view_as(each)
    for hook in hooks:
        hook.remove()


@wrong("02.4", says="hooks of yours are still on the parameters")
def leaves_its_hooks(model, loss, limit):
    class Leaving(Buckets):
        def finish(self):
            self.send()
            self.put_back()

    Leaving.run(model, loss, limit)


@wrong("02.4", says="it can't remove itself")
def each_hook_removes_itself(model, loss, limit):
    class RemovedWhenReady(Buckets):
        def __init__(self, model, limit):
            super().__init__(model, limit)
            self.hook_of = dict(zip(model.parameters(), self.hooks, strict=True))

        def ready(self, parameter):
            super().ready(parameter)
            self.hook_of[parameter].remove()

        def finish(self):
            self.send()
            self.put_back()

    RemovedWhenReady.run(model, loss, limit)


@wrong("02.4", says="This is the sum of the gradients")
def never_divides(model, loss, limit):
    class Summing(Buckets):
        def put_back(self):
            for work, flat, parameters in self.sent:
                work.wait()
                for each, piece in zip(parameters, flat.split([each.numel() for each in parameters]), strict=True):
                    each.grad.copy_(piece.view_as(each))

    Summing.run(model, loss, limit)


@wrong("02.4", says="A flat bucket is a copy")
def never_puts_back(model, loss, limit):
    class Sending(Buckets):
        def put_back(self):
            for work, _, _ in self.sent:
                work.wait()

    Sending.run(model, loss, limit)


@wrong("02.4", says="more than two wait for its end")
def only_the_first_leaves_early(model, loss, limit):
    class Lazy(Buckets):
        def __init__(self, model, limit):
            self.full = []
            super().__init__(model, limit)

        def send(self):
            if not self.sent:
                super().send()
            else:
                self.full.append(self.open)
                self.open = []

        def finish(self):
            waiting = [*self.full, self.open]
            for self.open in waiting:
                super().send()
            super().finish()

    Lazy.run(model, loss, limit)


@wrong("02.4", says="nobody has called `loss.backward()`")
def no_backward_pass(model, loss, limit):
    Buckets(model, limit).finish()


@wrong("02.4", says="nothing was sent")
def backward_only(model, loss, limit):
    loss.backward()


@wrong("02.4", says="which has returned")
def rank_0_flushes(model, loss, limit):
    class Uneven(Buckets):
        def finish(self):
            if dist.get_rank() == 0:
                self.send()
            self.put_back()

    Uneven.run(model, loss, limit)


@right("02.4")
def as_it_comes(model, loss, limit):
    Buckets.run(model, loss, limit)


@right("02.4")
def planned_beforehand(model, loss, limit):
    """Buckets are made from the parameters, in reverse order, and leave when all of theirs are ready."""
    plan, size = [[]], 0
    for parameter in reversed(list(model.parameters())):
        size += parameter.nbytes
        if size > limit:
            plan.append([])
            size = parameter.nbytes
        plan[-1].append(parameter)
    bucket_of = {parameter: bucket for bucket in plan for parameter in bucket}
    missing = {id(bucket): len(bucket) for bucket in plan}
    sent = {}

    def send(bucket):
        present = [each for each in bucket if each.grad is not None]
        if present:
            flat = torch.cat([each.grad.flatten() for each in present]) / dist.get_world_size()
            sent[id(bucket)] = dist.all_reduce(flat, async_op=True), flat, present

    def ready(parameter):
        bucket = bucket_of[parameter]
        missing[id(bucket)] -= 1
        if not missing[id(bucket)]:
            send(bucket)

    hooks = [each.register_post_accumulate_grad_hook(ready) for each in model.parameters()]
    loss.backward()
    for bucket in plan:
        if missing[id(bucket)]:
            send(bucket)
    for work, flat, present in sent.values():
        work.wait()
        for each, piece in zip(present, flat.split([each.numel() for each in present]), strict=True):
            each.grad = piece.view_as(each)
    for hook in hooks:
        hook.remove()


@right("02.4")
def one_buffer_and_futures(model, loss, limit):
    """Gradients are written into one long buffer; stretches of it travel, and a future's callback divides."""
    ranks, parameters = dist.get_world_size(), list(model.parameters())
    buffer = torch.zeros(sum(each.numel() for each in parameters), dtype=parameters[0].dtype)
    places, futures, begin, end = {}, [], 0, 0

    def send():
        nonlocal begin
        if end > begin:
            work = dist.all_reduce(buffer[begin:end], async_op=True)
            futures.append(work.get_future().then(lambda future: future.value()[0].div_(ranks)))
            begin = end

    def ready(parameter):
        nonlocal end
        if (end - begin + parameter.numel()) * buffer.element_size() > limit:
            send()
        places[parameter] = slice(end, end + parameter.numel())
        buffer[places[parameter]] = parameter.grad.flatten()
        end += parameter.numel()

    hooks = [each.register_post_accumulate_grad_hook(ready) for each in parameters]
    loss.backward()
    send()
    torch.futures.wait_all(futures)
    for parameter, place in places.items():
        parameter.grad = buffer[place].view_as(parameter)
    for hook in hooks:
        hook.remove()


@right("02.4")
def with_hooks_of_tensors(model, loss, limit):
    """A tensor's own hook has the gradient before it is in `grad`."""
    collected, opened, sent = {}, [], []

    def send():
        flat = torch.cat([collected[each].flatten() for each in opened])
        sent.append((dist.all_reduce(flat, async_op=True), flat, opened[:]))
        opened.clear()

    def note(parameter, gradient):
        if opened and sum(collected[each].nbytes for each in opened) + gradient.nbytes > limit:
            send()
        collected[parameter] = gradient.detach().clone()
        opened.append(parameter)

    hooks = [each.register_hook(lambda gradient, each=each: note(each, gradient)) for each in model.parameters()]
    loss.backward()
    if opened:
        send()
    for work, flat, parameters in sent:
        work.wait()
        flat /= dist.get_world_size()
        for each, piece in zip(parameters, flat.split([each.numel() for each in parameters]), strict=True):
            each.grad = piece.view_as(each)
    for hook in hooks:
        hook.remove()


@right("02.4")
def buckets_that_become_the_gradients(model, loss, limit):
    # Divides before sending, waits on futures instead of works, and leaves views of the buckets as gradients.
    ranks, trips = dist.get_world_size(), []

    class Bucket:
        def __init__(self):
            self.parameters, self.room = [], limit

        def takes(self, gradient):
            same = all(each.grad.dtype == gradient.dtype for each in self.parameters)
            return same and gradient.nbytes <= self.room

        def add(self, parameter):
            self.parameters.append(parameter)
            self.room -= parameter.grad.nbytes

        def leave(self):
            if self.parameters:
                self.flat = torch.cat([each.grad.reshape(-1) for each in self.parameters]).div_(ranks)
                self.arrival = dist.all_reduce(self.flat, async_op=True).get_future()
                trips.append(self)
            return Bucket()

        def unpack(self):
            self.arrival.wait()
            begin = 0
            for each in self.parameters:
                each.grad = self.flat[begin : begin + each.numel()].view(each.shape)
                begin += each.numel()

    bucket = Bucket()

    def ready(parameter):
        nonlocal bucket
        if not bucket.takes(parameter.grad):
            bucket = bucket.leave()
        bucket.add(parameter)
        if not bucket.room:
            bucket = bucket.leave()

    hooks = [each.register_post_accumulate_grad_hook(ready) for each in model.parameters() if each.requires_grad]
    try:
        loss.backward()
    finally:
        while hooks:
            hooks.pop().remove()
    bucket.leave()
    for trip in trips:
        trip.unpack()


@right("02.4")
def between_two_barriers(model, loss, limit):
    dist.barrier()
    as_it_comes(model, loss, limit)
    dist.barrier()
