"""Answers to the exercises of lesson 08, when ranks hang."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from tests.checks.bank import NEVER_WAITS, right, wrong

# 08.1 Which replica is wrong


def all_replicas(weights):
    replicas = [None] * dist.get_world_size()
    dist.all_gather_object(replicas, weights)
    return replicas


def first_odd(versions_of, names):
    """The rank whose version is there once, and the name, of the first name with two versions."""
    for name in names:
        versions = versions_of(name)
        for rank, version in enumerate(versions):
            if versions.count(version) == 1:
                return rank, name
    return None


def as_bytes(weights):
    return {name: tensor.numpy().tobytes() for name, tensor in weights.items()}


@wrong("08.1", says="Rank 0's replica is the wrong one here")
def like_rank_0(weights):
    replicas = all_replicas(as_bytes(weights))
    for name in weights:
        for rank, replica in enumerate(replicas):
            if replica[name] != replicas[0][name]:
                return rank, name
    return None


@wrong("08.1", says="sum, norm and maximum are the same")
def by_sums(weights):
    replicas = all_replicas({name: tensor.double().sort().values.sum().item() for name, tensor in weights.items()})
    return first_odd(lambda name: [f"{replica[name]:.3f}" for replica in replicas], weights)


@wrong("08.1", says="sum, norm and maximum are the same")
def by_norms(weights):
    replicas = all_replicas({name: round(tensor.double().norm().item(), 4) for name, tensor in weights.items()})
    return first_odd(lambda name: [str(replica[name]) for replica in replicas], weights)


@wrong("08.1", says="compare without a tolerance")
def rounded(weights):
    lists = {name: [round(number, 4) for number in tensor.flatten().tolist()] for name, tensor in weights.items()}
    replicas = all_replicas(lists)
    return first_odd(lambda name: [str(replica[name]) for replica in replicas], weights)


@wrong("08.1", says="compare without a tolerance")
def with_a_tolerance(weights):
    replicas = all_replicas(weights)
    for name in weights:
        for rank, one in enumerate(replicas):
            like = [torch.allclose(one[name], other[name], equal_nan=True) for other in replicas]
            if sum(like) == 1:
                return rank, name
    return None


@wrong("08.1", says="`nan == nan` is False")
def by_equal(weights):
    replicas = all_replicas(weights)
    for name in weights:
        for rank, one in enumerate(replicas):
            if sum(torch.equal(one[name], other[name]) for other in replicas) <= 1:
                return rank, name
    return None


@wrong("08.1", says="`nan == nan` is False")
def by_difference(weights):
    for name, tensor in weights.items():
        everybody = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, tensor)
        alike = [sum(bool(((one - other) == 0).all()) for other in everybody) for one in everybody]
        if min(alike) < max(alike) or max(alike) == 0:
            return alike.index(min(alike)), name
    return None


@wrong("08.1", says="The ranks do not return the same")
def only_rank_0_knows(weights):
    replicas = all_replicas(as_bytes(weights))
    found = first_odd(lambda name: [replica[name] for replica in replicas], weights)
    return found if dist.get_rank() == 0 else None


@wrong("08.1", says="The ranks do not return the same")
def each_for_itself(weights):
    replicas = all_replicas(as_bytes(weights))
    for name, mine in as_bytes(weights).items():
        if sum(replica[name] == mine for replica in replicas) == 1:
            return dist.get_rank(), name
    return None


@wrong("08.1", says="the name is wrong, or missing")
def last_name(weights):
    replicas = all_replicas(as_bytes(weights))
    return first_odd(lambda name: [replica[name] for replica in replicas], reversed(weights))


@wrong("08.1", says="the name is wrong, or missing")
def shortest_name(weights):
    replicas = all_replicas(as_bytes(weights))
    return first_odd(lambda name: [replica[name] for replica in replicas], sorted(weights, key=len))


@wrong("08.1", says="This rank has what most others have")
def one_of_the_majority(weights):
    replicas = all_replicas(as_bytes(weights))
    for name in weights:
        versions = [replica[name] for replica in replicas]
        if len(set(versions)) > 1:
            return versions.index(max(set(versions), key=versions.count)), name
    return None


@wrong("08.1", says="All replicas are the same here")
def always_somebody(weights):
    replicas = all_replicas(as_bytes(weights))
    found = first_odd(lambda name: [replica[name] for replica in replicas], weights)
    return found or (0, next(iter(weights)))


@wrong("08.1", says="it should return a rank and a name, or None")
def only_the_rank(weights):
    replicas = all_replicas(as_bytes(weights))
    found = first_odd(lambda name: [replica[name] for replica in replicas], weights)
    return found and found[0]


@wrong("08.1", says="nobody is named")
def first_tensor_only(weights):
    name = next(iter(weights))
    replicas = all_replicas(as_bytes(weights))
    return first_odd(lambda name: [replica[name] for replica in replicas], [name])


@wrong("08.1", says="rank 0")
def gathered_by_rank_0_alone(weights):
    if dist.get_rank() == 0:
        all_replicas(as_bytes(weights))


@right("08.1")
def with_hashes(weights):
    import hashlib

    replicas = all_replicas({name: hashlib.sha256(data).hexdigest() for name, data in as_bytes(weights).items()})
    return first_odd(lambda name: [replica[name] for replica in replicas], weights)


@right("08.1")
def bits_as_integers(weights):
    for name, tensor in weights.items():
        bits = tensor.flatten().view(torch.int32)
        everybody = [torch.empty_like(bits) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, bits)
        alike = [sum(torch.equal(one, other) for other in everybody) for one in everybody]
        if 1 in alike:
            return [alike.index(1), name]
    return None


@right("08.1")
def decided_on_rank_0(weights):
    replicas = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(as_bytes(weights), replicas)
    found = [None]
    if dist.get_rank() == 0:
        found = [first_odd(lambda name: [replica[name] for replica in replicas], weights)]
    dist.broadcast_object_list(found)
    return found[0]


@right("08.1")
def votes(weights):
    replicas = all_replicas(weights)
    mine = sum(all(torch.equal(mine.nan_to_num(7e30), replica[name].nan_to_num(7e30)) for name, mine in weights.items())
               for replica in replicas)  # fmt: skip
    alike = all_replicas(mine)
    if 1 not in alike:
        return None
    odd, like = alike.index(1), alike.index(max(alike))
    for name in weights:
        if replicas[odd][name].numpy().tobytes() != replicas[like][name].numpy().tobytes():
            return odd, name
    return None


@wrong("08.1", says="every Python process salts it differently")
def compares_hashes(weights):
    hashes = [None] * dist.get_world_size()
    dist.all_gather_object(hashes, [hash(tensor.numpy().tobytes()) for tensor in weights.values()])
    for name, versions in zip(weights, zip(*hashes, strict=True), strict=True):
        for rank, version in enumerate(versions):
            if versions.count(version) == 1:
                return rank, name
    return None


@wrong("08.1", says="The rank is right; the name is wrong", never="This rank has what most others have")
def farthest_from_the_mean(weights):
    """The mean is rounded, so it differs from tensors that are the same everywhere."""
    for name, tensor in weights.items():
        mean = tensor.nan_to_num().clone()
        dist.all_reduce(mean)
        off = (tensor.nan_to_num() - mean / dist.get_world_size()).abs().sum()
        of_ranks = [torch.zeros_like(off) for _ in range(dist.get_world_size())]
        dist.all_gather(of_ranks, off)
        offs = [each.item() for each in of_ranks]
        if max(offs) > 0:
            return offs.index(max(offs)), name
    return None


# 08.2 Uneven batches


def agreed(number, op=dist.ReduceOp.MAX):
    number = torch.tensor(number)
    dist.all_reduce(number, op=op)
    return int(number)


def loss_of(batch):
    both = torch.tensor([float(batch.sum()), len(batch)], dtype=torch.float64)
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


def padded(batches, updates):
    return [*batches, *[torch.empty(0)] * (updates - len(batches))]


@wrong("08.2", says="the ranks have to ask one another")
def ten_updates(batches):
    losses = []
    for update in range(10):
        batch = batches[update] if update < len(batches) else torch.empty(0)
        both = torch.tensor([float(batch.sum()), len(batch)])
        dist.all_reduce(both)
        if both[1] > 0:
            losses.append((both[0] / both[1]).item())
    return losses


@wrong("08.2", says="the ranks have to ask one another")
def a_hundred_updates(batches):
    losses = [loss_of(batch) for batch in padded(batches, 100)[:100]]
    return [loss for loss in losses if loss == loss]


@wrong("08.2", says="stop when the first has run out")
def shortest(batches):
    return [loss_of(batch) for batch in batches[: agreed(len(batches), dist.ReduceOp.MIN)]]


@wrong("08.2", says="stop when the first has run out")
def until_somebody_is_done(batches):
    losses, mine = [], iter(batches)
    while True:
        batch = next(mine, None)
        if agreed(batch is None):
            return losses
        losses.append(loss_of(batch))


@wrong("08.2", says="as many updates as rank 0 has batches")
def first_rank_knows(batches):
    updates = [len(batches)]
    dist.broadcast_object_list(updates, src=0)
    return [loss_of(batch) for batch in padded(batches, updates[0])[: updates[0]]]


@wrong("08.2", says="adds a mean of 0")
def zero_means(batches):
    losses = []
    for batch in padded(batches, agreed(len(batches))):
        mean = batch.mean() if len(batch) else torch.tensor(0.0)
        mean = mean.double()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


@wrong("08.2", says="the mean of the ranks' means")
def means_of_the_present(batches):
    losses = []
    for batch in padded(batches, agreed(len(batches))):
        means = [None] * dist.get_world_size()
        dist.all_gather_object(means, batch.mean().item() if len(batch) else None)
        present = [mean for mean in means if mean is not None]
        losses.append(sum(present) / len(present))
    return losses


@wrong("08.2", says="uses a batch again")
def last_one_again(batches):
    updates = agreed(len(batches))
    mine = [*batches, *(batches[-1:] or [torch.empty(0)]) * (updates - len(batches))]
    return [loss_of(batch) for batch in mine]


@wrong("08.2", says="uses a batch again")
def from_the_beginning_again(batches):
    updates = agreed(len(batches))
    mine = [batches[update % len(batches)] if batches else torch.empty(0) for update in range(updates)]
    return [loss_of(batch) for batch in mine]


@wrong("08.2", says="not a number")
def mean_of_nothing(batches):
    losses = []
    for batch in padded(batches, agreed(len(batches))):
        both = torch.stack([batch.double().mean() * len(batch), torch.tensor(float(len(batch)))])
        dist.all_reduce(both)
        losses.append((both[0] / both[1]).item())
    return losses


@wrong("08.2", says="the losses of its own batches")
def no_message(batches):
    return [batch.mean() for batch in batches]


@wrong("08.2", says="These are the sums")
def only_sums(batches):
    losses = []
    for batch in padded(batches, agreed(len(batches))):
        total = batch.sum().double()
        dist.all_reduce(total)
        losses.append(total)
    return losses


@wrong("08.2", says="rank")
def each_its_own_number(batches):
    return [loss_of(batch) for batch in batches]


@wrong("08.2", says="more losses than updates")
def one_too_many(batches):
    return [loss if loss == loss else 0.0 for loss in map(loss_of, padded(batches, agreed(len(batches)) + 1))]


@wrong("08.2", says="The ranks stop at the first update whose losses add up to 0")
def until_the_loss_is_zero(batches):
    losses, mine = [], iter(batches)
    while True:
        batch = next(mine, torch.empty(0))
        both = torch.tensor([float(batch.sum()), len(batch)], dtype=torch.float64)
        dist.all_reduce(both)
        if both[0] == 0:
            return losses
        losses.append((both[0] / both[1]).item())


@wrong("08.2", says="Updates whose losses add up to 0 are missing")
def leaves_zeros_out(batches):
    return [loss for loss in map(loss_of, padded(batches, agreed(len(batches)))) if loss]


@wrong("08.2", says="There are fewer losses than updates.")
def last_rank_knows(batches):
    updates = [len(batches)]
    dist.broadcast_object_list(updates, src=dist.get_world_size() - 1)
    return [loss_of(batch) for batch in padded(batches, updates[0])[: updates[0]]]


@wrong("08.2", says="There are fewer losses than updates.")
def one_fewer(batches):
    updates = agreed(len(batches))
    return [loss_of(batch) for batch in padded(batches, updates)[: max(1, updates - 1)]][:updates]


@wrong("08.2", says=NEVER_WAITS)
def losses_never_awaited(batches):
    losses = []
    for batch in padded(batches, agreed(len(batches))):
        both = torch.tensor([float(batch.sum()), len(batch)], dtype=torch.float64)
        dist.all_reduce(both, async_op=True)
        losses.append((both[0] / both[1]).item())
    return losses


@right("08.2")
def until_nobody_has_any(batches):
    losses, mine = [], iter(batches)
    while True:
        batch = next(mine, torch.empty(0))
        both = torch.stack([batch.sum().double(), torch.tensor(float(len(batch))).double()])
        dist.all_reduce(both)
        if not both[1]:
            return losses
        losses.append(both[0] / both[1])


@right("08.2")
def one_message(batches):
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, [(batch.sum().item(), len(batch)) for batch in batches])
    losses = []
    for update in range(max(map(len, everybody))):
        here = [mine[update] for mine in everybody if update < len(mine)]
        losses.append(sum(total for total, _ in here) / sum(count for _, count in here))
    return losses


@right("08.2")
def all_in_one_tensor(batches):
    table = torch.zeros(agreed(len(batches)), 2)
    for update, batch in enumerate(batches):
        table[update] = torch.tensor([batch.sum(), len(batch)])
    dist.all_reduce(table)
    return table[:, 0] / table[:, 1]


@right("08.2")
def weighted_means(batches):
    losses = []
    for batch in padded(batches, agreed(len(batches))):
        count = torch.tensor(len(batch))
        dist.all_reduce(count)
        part = (batch / count).sum().double()
        dist.all_reduce(part)
        losses.append(part)
    return losses


@wrong("08.2", says="adds an example with a loss of 0")
def an_example_of_zero(batches):
    updates = torch.tensor(len(batches))
    dist.all_reduce(updates, op=dist.ReduceOp.MAX)
    filled = [*batches, *[torch.zeros(1)] * (int(updates) - len(batches))]
    losses = []
    for batch in filled:
        both = torch.tensor([float(batch.sum()), len(batch)], dtype=torch.float64)
        dist.all_reduce(both)
        losses.append(both[0] / both[1])
    return losses


@wrong("08.2", says="the list holds one tensor many times")
def one_tensor_for_all(batches):
    losses, mean = [], torch.zeros((), dtype=torch.float64)
    for batch in padded(batches, agreed(len(batches), dist.ReduceOp.MAX)):
        mean.copy_(torch.as_tensor(loss_of(batch)))
        losses.append(mean)
    return losses


@wrong("08.2", says="Each loss is the mean over all updates so far")
def one_mean_for_the_epoch(batches):
    losses, both = [], torch.zeros(2, dtype=torch.float64)
    for batch in padded(batches, agreed(len(batches), dist.ReduceOp.MAX)):
        mine = torch.tensor([float(batch.sum()), len(batch)], dtype=torch.float64)
        dist.all_reduce(mine)
        both += mine
        losses.append((both[0] / both[1]).item())
    return losses


# 08.3 One rank sees a nan


def is_good(gradient):
    return bool(gradient.isfinite().all())


def updated(weight, gradients, rate, skip, mend=lambda gradient: gradient):
    weights = []
    for gradient in gradients:
        if not skip(gradient):
            gradient = mend(gradient.clone())
            dist.all_reduce(gradient)
            weight = weight - rate * gradient / dist.get_world_size()
        weights.append(weight)
    return weights


@wrong("08.3", says="Look at the gradient before you use it")
def no_look(weight, gradients, rate):
    return updated(weight, gradients, rate, skip=lambda gradient: False)


@wrong("08.3", says="with zeros in place of the bad gradient")
def nan_to_zero(weight, gradients, rate):
    return updated(weight, gradients, rate, lambda gradient: False, lambda g: g.nan_to_num(0.0, 0.0, 0.0))


@wrong("08.3", says="with zeros in place of the bad gradient")
def bad_ones_add_nothing(weight, gradients, rate):
    mend = lambda gradient: gradient if is_good(gradient) else torch.zeros_like(gradient)  # noqa: E731
    return updated(weight, gradients, rate, lambda gradient: agreed(is_good(gradient)) == 0, mend)


@wrong("08.3", says="without that rank")
def mean_of_the_good(weight, gradients, rate):
    weights = []
    for gradient in gradients:
        good = torch.tensor(float(is_good(gradient)))
        dist.all_reduce(good)
        gradient = gradient if is_good(gradient) else torch.zeros_like(gradient)
        dist.all_reduce(gradient)
        if good:
            weight = weight - rate * gradient / good
        weights.append(weight)
    return weights


@wrong("08.3", says="fewer weights than updates")
def leaves_the_loop(weight, gradients, rate):
    weights = []
    for gradient in gradients:
        if agreed(not is_good(gradient)):
            break
        dist.all_reduce(gradient)
        weight = weight - rate * gradient / dist.get_world_size()
        weights.append(weight)
    return weights


@wrong("08.3", says="fewer weights than updates")
def not_in_the_list(weight, gradients, rate):
    weights = []
    for gradient in gradients:
        if agreed(not is_good(gradient)):
            continue
        dist.all_reduce(gradient)
        weight = weight - rate * gradient / dist.get_world_size()
        weights.append(weight)
    return weights


@wrong("08.3", says="says nothing about this one")
def once_bad_always_bad(weight, gradients, rate):
    bad = False

    def skip(gradient):
        nonlocal bad
        bad = bad or bool(agreed(not is_good(gradient)))
        return bad

    return updated(weight, gradients, rate, skip)


@wrong("08.3", says="to skip only if every one has a nan")
def if_all_are_bad(weight, gradients, rate):
    return updated(weight, gradients, rate, lambda gradient: agreed(not is_good(gradient), dist.ReduceOp.MIN))


@wrong("08.3", says="depends on *all* ranks")
def rank_0_says(weight, gradients, rate):
    def skip(gradient):
        bad = torch.tensor(not is_good(gradient)).int()
        dist.broadcast(bad, src=0)
        return bool(bad)

    return updated(weight, gradients, rate, skip)


@wrong("08.3", says="`isfinite`")
def nan_only(weight, gradients, rate):
    return updated(weight, gradients, rate, lambda gradient: agreed(bool(gradient.isnan().any())))


@wrong("08.3", says="the sum of the ranks' gradients")
def sum_of_gradients(weight, gradients, rate):
    return updated(weight, gradients, rate * dist.get_world_size(), lambda gradient: agreed(not is_good(gradient)))


@wrong("08.3", says="one tensor many times")
def in_place(weight, gradients, rate):
    weights = []
    for gradient in gradients:
        if not agreed(not is_good(gradient)):
            dist.all_reduce(gradient)
            weight -= rate * gradient / dist.get_world_size()
        weights.append(weight)
    return weights


@wrong("08.3", says="rank")
def on_its_own(weight, gradients, rate):
    return updated(weight, gradients, rate, lambda gradient: not is_good(gradient))


@wrong("08.3", says="subtracts its own gradient")
def never_added_up(weight, gradients, rate):
    weights = []
    for gradient in gradients:
        weight = weight if agreed(not is_good(gradient)) else weight - rate * gradient
        weights.append(weight)
    return weights


@wrong("08.3", says="no longer the same")
def skips_after_the_sum(weight, gradients, rate):
    weights = []
    for gradient in gradients:
        good = is_good(gradient)
        gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
        dist.all_reduce(gradient)
        if good:
            weight = weight - rate * gradient / dist.get_world_size()
        weights.append(weight)
    return weights


@wrong("08.3", says=NEVER_WAITS)
def sum_never_awaited(weight, gradients, rate):
    weights = []
    for gradient in gradients:
        bad = torch.tensor(int(not is_good(gradient)))
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if not bad:
            dist.all_reduce(gradient, async_op=True)
            weight = weight - rate * gradient / dist.get_world_size()
        weights.append(weight)
    return weights


@wrong("08.3", says="large but finite gradients", never="in an earlier update")
def tests_the_norm(weight, gradients, rate):
    weights = []
    for gradient in gradients:
        total = gradient.clone()
        dist.all_reduce(total)
        norm = total.square().sum().sqrt()
        if torch.isfinite(norm):
            weight = weight - rate * total / dist.get_world_size()
        weights.append(weight)
    return weights


@right("08.3")
def looks_at_the_sum(weight, gradients, rate):
    weights = []
    for gradient in gradients:
        dist.all_reduce(gradient)
        if gradient.isfinite().all():
            weight = weight - rate * gradient / dist.get_world_size()
        weights.append(weight)
    return weights


@right("08.3")
def gathers_them(weight, gradients, rate):
    weights = [weight]
    for gradient in gradients:
        of_all = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(of_all, gradient)
        mean = torch.stack(of_all).mean(dim=0)
        weights.append(weights[-1] - rate * mean if mean.isfinite().all() else weights[-1])
    return weights[1:]


@right("08.3")
def flag_in_the_tensor(weight, gradients, rate):
    rows = torch.zeros(len(gradients), len(weight))
    weight = weight.clone()
    for row, gradient in zip(rows, gradients, strict=True):
        message = torch.cat([gradient.nan_to_num(), torch.tensor([float(not is_good(gradient))]).double()])
        message[:-1] *= float(message[-1] == 0)
        dist.all_reduce(message)
        if message[-1] == 0:
            weight.sub_(message[:-1], alpha=rate / dist.get_world_size())
        row.copy_(weight)
    return rows


@right("08.3")
def all_flags_first(weight, gradients, rate):
    bad = torch.tensor([not is_good(gradient) for gradient in gradients]).int()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    weights = []
    for gradient, skipped in zip(gradients, bad.tolist(), strict=True):
        if not skipped:
            dist.all_reduce(gradient)
            weight = torch.add(weight, gradient, alpha=-rate / dist.get_world_size())
        weights.append(weight.clone())
    return weights


# 08.4 The first difference


def odd_and_usual(record):
    lists = [tuple(each["calls"]) for each in record]
    usual = max(lists, key=lists.count)
    return next(rank for rank, calls in enumerate(lists) if calls != usual), usual


def first_difference(mine, usual):
    both = min(len(mine), len(usual))
    return next((place for place in range(both) if mine[place] != usual[place]), both)


def diagnosed(record):
    odd, usual = odd_and_usual(record)
    mine, doing = record[odd]["calls"], record[odd]["doing"]
    place = first_difference(mine, usual)
    if place >= len(mine):
        return (odd, record[odd]["line"], "busy") if doing == "running" else (odd, usual[place][1], "returned")
    if place >= len(usual):
        return odd, mine[place][1], "extra"
    if mine[place][0] != usual[place][0]:
        return odd, mine[place][1], "mismatch"
    if mine[place][1] not in {line for _, line in usual}:
        return odd, mine[place][1], "extra"
    return odd, usual[place][1], "skipped"


@wrong("08.4", says="it is a victim")
def first_that_waits(record):
    rank = next(rank for rank, each in enumerate(record) if each["doing"] == "waiting")
    return rank, record[rank]["line"], "skipped"


@wrong("08.4", says="it is a victim")
def whoever_does_not_wait(record):
    found = diagnosed(record)
    idle = [rank for rank, each in enumerate(record) if each["doing"] != "waiting"]
    return (idle[0], *found[1:]) if idle else found


@wrong("08.4", says="That is where it was noticed")
def where_it_hangs(record):
    odd, line, cause = diagnosed(record)
    return odd, record[odd]["line"] or line, cause


@wrong("08.4", says="the line is that of the other side")
def where_the_others_hang(record):
    odd, line, cause = diagnosed(record)
    return odd, record[odd - 1]["line"] or line, cause


@wrong("08.4", says="the line is that of the other side")
def own_line_of_a_skip(record):
    odd, line, cause = diagnosed(record)
    if cause != "skipped":
        return odd, line, cause
    mine, usual = record[odd]["calls"], odd_and_usual(record)[1]
    return odd, mine[first_difference(mine, usual)][1], cause


@wrong("08.4", says="the cause is not")
def no_matter_how_it_ends(record):
    odd, line, cause = diagnosed(record)
    return odd, line, "returned" if cause == "busy" else cause


@wrong("08.4", says="the cause is not")
def counts_only(record):
    odd, usual = odd_and_usual(record)
    found = diagnosed(record)
    if found[2] in ("skipped", "extra"):
        return (*found[:2], "extra" if len(record[odd]["calls"]) > len(usual) else "skipped")
    return found


@wrong("08.4", says="the cause is not")
def compares_lines_only(record):
    odd, line, cause = diagnosed(record)
    return odd, line, "extra" if cause == "mismatch" else cause


@wrong("08.4", says="it is a victim")
def shortest_list(record):
    rank = min(range(len(record)), key=lambda rank: len(record[rank]["calls"]))
    return rank, *diagnosed(record)[1:]


@wrong("08.4", says="That is where it was noticed")
def last_difference(record):
    found = diagnosed(record)
    last = (record[found[0]]["calls"] or [(None, None)])[-1]
    return (found[0], last[1], found[2]) if found[2] == "extra" else found


@wrong("08.4", says="before this place or after it")
def later_for_never(record):
    odd, usual = odd_and_usual(record)
    mine = record[odd]["calls"]
    place = first_difference(mine, usual)
    found = diagnosed(record)
    if found[2] == "skipped" and mine[place][1] not in [line for _, line in usual[place:]]:
        return odd, mine[place][1], "extra"
    return found


@wrong("08.4", says="before this place or after it")
def earlier_for_never(record):
    odd, usual = odd_and_usual(record)
    mine = record[odd]["calls"]
    place = first_difference(mine, usual)
    found = diagnosed(record)
    if found[2] == "skipped" and mine[place][1] not in [line for _, line in usual[:place]]:
        return odd, mine[place][1], "extra"
    return found


@wrong("08.4", says="it has left nothing out")
def a_known_line_is_never_extra(record):
    ranks = range(len(record))
    calls = [[tuple(call) for call in record[rank]["calls"]] for rank in ranks]
    odd = next(rank for rank in ranks if calls.count(calls[rank]) == 1)
    own, others = calls[odd], calls[odd - 1]
    at = 0
    while own[at : at + 1] and own[at : at + 1] == others[at : at + 1]:
        at += 1
    if at == len(own):
        if record[odd]["doing"] == "returned":
            return odd, others[at][1], "returned"
        return odd, record[odd]["line"], "busy"
    op, line = own[at]
    if at < len(others) and op != others[at][0]:
        return odd, line, "mismatch"
    if any(line == theirs for _, theirs in others):
        return odd, others[min(at, len(others) - 1)][1], "skipped"
    return odd, line, "extra"


@right("08.4")
def by_pairs(record):
    from itertools import zip_longest

    odd, usual = odd_and_usual(record)
    for mine, theirs in zip_longest(record[odd]["calls"], usual):
        if mine == theirs:
            continue
        if mine is None and record[odd]["doing"] == "running":
            return [odd, record[odd]["line"], "busy"]
        if mine is None:
            return [odd, theirs[1], "returned"]
        if theirs is not None and mine[0] != theirs[0]:
            return [odd, mine[1], "mismatch"]
        if theirs is None or all(line != mine[1] for _, line in usual):
            return [odd, mine[1], "extra"]
        return [odd, theirs[1], "skipped"]
    return None


@right("08.4")
def each_against_its_neighbors(record):
    ranks = range(len(record))
    calls = [each["calls"] for each in record]
    odd = next(r for r in ranks if calls[r] not in [calls[other] for other in ranks if other != r])
    copy = [dict(each) for each in record]
    assert copy[odd] == record[odd]
    return diagnosed(copy)


@right("08.4")
def with_text(record):
    found = diagnosed([{**each, "calls": list(each["calls"])} for each in record])
    return int(str(found[0])), int(f"{found[1]}"), str(found[2])


@right("08.4")
def a_mismatch_is_where_it_waits(record):
    ranks = range(len(record))
    calls = [[tuple(call) for call in record[rank]["calls"]] for rank in ranks]
    odd = next(rank for rank in ranks if sum(calls[rank] == other for other in calls) == 1)
    own, others = calls[odd], calls[(odd + 1) % len(calls)]
    at = next((n for n, (a, b) in enumerate(zip(own, others, strict=False)) if a != b), min(len(own), len(others)))
    if at == len(own):
        returned = record[odd]["doing"] == "returned"
        return (odd, others[at][1], "returned") if returned else (odd, record[odd]["line"], "busy")
    if at == len(others):
        return odd, own[at][1], "extra"
    if own[at][0] != others[at][0]:
        return odd, record[odd]["line"], "mismatch"
    if own[at][1] in [line for _, line in others]:
        return odd, others[at][1], "skipped"
    return odd, own[at][1], "extra"


# 08.5 Who waits for whom


def waits_for(record, rank):
    me = record[rank]
    if me["doing"] != "waiting":
        return []
    if me["group"] is None:
        return [me["peer"]]
    there = [rank for rank, each in enumerate(record) if (each["op"], each["group"]) == (me["op"], me["group"])]
    return [member for member in me["members"] if member not in there]


def reachable(record, rank):
    found, stack = set(), waits_for(record, rank)
    while stack:
        other = stack.pop()
        if other not in found:
            found.add(other)
            stack += waits_for(record, other)
    return found


def cause_of(record, ranks):
    doing = {record[rank]["doing"] for rank in ranks}
    if doing != {"waiting"}:
        return "busy" if "running" in doing else "returned"
    return {("recv",): "all receive", ("send",): "all send"}.get(tuple({record[rank]["op"] for rank in ranks}), "order")


def told(record, ranks):
    return {rank: record[rank]["line"] for rank in ranks}, cause_of(record, ranks)


def circle_or_end(record):
    ranks = range(len(record))
    reach = [reachable(record, rank) for rank in ranks]
    in_need = [rank for rank in ranks if any(rank in each for each in reach)]
    return [rank for rank in in_need if all(rank in reach[other] for other in reach[rank])]


@wrong("08.5", says="and others besides")
def all_that_wait(record):
    idle = [rank for rank, each in enumerate(record) if each["doing"] != "waiting"]
    return told(record, idle or range(len(record)))


@wrong("08.5", says="would go on if that one did")
def first_one(record):
    return told(record, [0])


@wrong("08.5", says="not all of it")
def lowest_of_the_circle(record):
    ranks = circle_or_end(record)
    return {min(ranks): record[min(ranks)]["line"]}, cause_of(record, ranks)


@wrong("08.5", says="and others besides")
def path_and_circle(record):
    path = [next(rank for rank, each in enumerate(record) if each["doing"] == "waiting")]
    while True:
        following = waits_for(record, path[-1])
        if not following or following[0] in path:
            return told(record, path if following else path[-1:])
        path.append(following[0])


@wrong("08.5", says="of the circle, but not all of it")
def most_awaited(record):
    awaited = [other for rank in range(len(record)) for other in waits_for(record, rank)]
    return told(record, [max(set(awaited), key=awaited.count)])


@wrong("08.5", says="the cause is not")
def always_the_order(record):
    lines, cause = told(record, circle_or_end(record))
    return lines, "order" if cause.startswith("all") else cause


@wrong("08.5", says="has it returned, or is it running?")
def gone_is_gone(record):
    lines, cause = told(record, circle_or_end(record))
    return lines, "returned" if cause == "busy" else cause


@wrong("08.5", says="do all receive, or is it neither?")
def by_the_first_of_them(record):
    ranks = circle_or_end(record)
    op = record[ranks[0]]["op"]
    lines, cause = told(record, ranks)
    return lines, {"send": "all send", "recv": "all receive"}.get(op, cause)


@wrong("08.5", says="a line is not")
def line_of_the_victim(record):
    ranks = circle_or_end(record)
    waiting = [rank for rank in range(len(record)) if record[rank]["doing"] == "waiting"]
    lines = {rank: record[rank]["line"] or record[waiting[0]]["line"] for rank in ranks}
    return lines, cause_of(record, ranks)


@wrong("08.5", says="name only the ranks where they end")
def all_members_are_missing(record):
    def needs(rank):
        me = record[rank]
        return [me["peer"]] if me["group"] is None else [other for other in me["members"] if other != rank]

    reach = []
    for rank in range(len(record)):
        found, stack = set(), [rank]
        while stack:
            other = stack.pop()
            for each in needs(other) if record[other]["doing"] == "waiting" else []:
                if each not in found:
                    found.add(each)
                    stack.append(each)
        reach.append(found)
    needed = set().union(*reach)
    return told(record, [rank for rank in needed if all(rank in reach[other] for other in reach[rank])])


def walk_from_the_first(record, chosen):
    """Follow one awaited rank at a time, and return the ranks of the cycle, or the rank at the end."""
    rank = next(rank for rank, each in enumerate(record) if each["doing"] == "waiting")
    path = [rank]
    while following := waits_for(record, path[-1]):
        other = chosen(following)
        if other in path:
            return path[path.index(other) :]
        path.append(other)
    return path[-1:]


@wrong("08.5", says="These are some ranks of the circle, but not all of it")
def first_of_those_awaited(record):
    return told(record, sorted(walk_from_the_first(record, min)))


@wrong("08.5", says="These are some ranks of the circle, but not all of it")
def last_of_those_awaited(record):
    return told(record, sorted(walk_from_the_first(record, max)))


@wrong("08.5", says="No rank is named")
def one_group_is_one_call(record):
    def needs(rank):
        me = record[rank]
        if me["doing"] != "waiting":
            return set()
        if me["group"] is None:
            return {me["peer"]}
        return {other for other in me["members"] if record[other]["group"] != me["group"]}

    reach = [needs(rank) for rank in range(len(record))]
    for _ in record:
        reach = [mine.union(*(reach[other] for other in mine)) for mine in reach]
    needed = set().union(*reach)
    roots = [rank for rank in needed if all(rank in reach[other] for other in reach[rank])]
    return told(record, roots) if roots else ({}, "order")


@wrong("08.5", says="of the circle, but not all of it")
def pairs_that_wait_for_each_other(record):
    ranks = range(len(record))
    idle = [rank for rank in ranks if record[rank]["doing"] != "waiting"]
    if idle:
        return told(record, circle_or_end(record))
    pairs = [{a, b} for a in ranks for b in waits_for(record, a) if a in waits_for(record, b)]
    return told(record, sorted(pairs[0]) if pairs else circle_or_end(record))


@wrong("08.5", says="Ranks and lines are right, but the cause is not")
def any_receive_is_all_receive(record):
    lines, cause = told(record, circle_or_end(record))
    ops = {record[rank]["op"] for rank in lines}
    return lines, "all receive" if cause == "order" and "recv" in ops and "send" not in ops else cause


@right("08.5")
def by_taking_away(record):
    """Whoever nobody else's going on would help."""
    following = [reached for rank in range(len(record)) if (reached := reachable(record, rank))]
    return told(record, min(following, key=len))


@right("08.5")
def with_a_matrix(record):
    size = len(record)
    reach = torch.zeros(size, size, dtype=torch.bool)
    for rank in range(size):
        reach[rank, waits_for(record, rank)] = True
    for middle in range(size):
        reach |= reach[:, middle : middle + 1] & reach[middle : middle + 1]
    needed = reach.any(dim=0)
    returns = (~reach | reach.T).all(dim=1)
    return told(record, (needed & returns).nonzero().flatten().tolist())


@right("08.5")
def walk_long_enough(record):
    """After so many steps, any walk has come to the end."""
    rank = next(rank for rank in range(len(record)) if waits_for(record, rank))
    for _ in range(len(record)):
        following = waits_for(record, rank)
        others = [other for other in following if rank not in reachable(record, other)]
        rank = (others or following or [rank])[0]
    return [*told(record, sorted(reachable(record, rank)) or [rank])]


@wrong("08.5", says="and others besides")
def on_the_same_line(record):
    """Ranks in the same barrier, on different lines, are taken to wait for each other."""
    named = [{**each, "group": each["group"] and f"{each['group']} {each['line']}"} for each in record]
    return with_a_matrix(named)


@wrong("08.5", says="No rank waits for this one")
def first_that_does_not_wait(record):
    idle = [rank for rank, each in enumerate(record) if each["doing"] != "waiting"]
    return told(record, idle[:1]) if idle else with_a_matrix(record)


# 08.6 It runs, and is wrong


def alike(a, b):
    return all(abs(x - y) <= 1e-7 * (1 + abs(y)) for x, y in zip(a, b, strict=True))


def found_fault(record, alike=alike, skip=()):
    """A right answer that leaves out what it is told to."""
    before = torch.tensor(record["start"], dtype=torch.float64)
    if "start" not in skip:
        for rank in range(len(before)):
            if sum(alike(before[rank].tolist(), other.tolist()) for other in before) == 1:
                return rank, 0, "start"
    seen = []
    for update, ranks in enumerate(record["updates"]):
        for rank, mine in enumerate(ranks):
            if "repeats" not in skip and any(example in seen for example in mine["examples"]):
                return rank, update, "repeats"
        seen += [example for mine in ranks for example in mine["examples"]]
        own, used, after = (
            torch.tensor([mine[name] for mine in ranks], dtype=torch.float64)
            for name in ("gradient", "used", "weights")
        )
        bad = [rank for rank in range(len(ranks)) if not alike(used[rank].tolist(), own.mean(dim=0).tolist())]
        if bad and "used" not in skip:
            if len(bad) == 1:
                return bad[0], update, "own gradient"
            return None, update, "sum" if alike(used[0].tolist(), own.sum(dim=0).tolist()) else "group"
        moved = before - record["rate"] * used
        off = [rank for rank in range(len(ranks)) if not alike(after[rank].tolist(), moved[rank].tolist())]
        still = [rank for rank in off if alike(after[rank].tolist(), before[rank].tolist())]
        if off and "moved" not in skip:
            return (still or off)[0], update, "not applied" if still else "other rate"
        before = after
    return None, None, "none"


@wrong("08.6", says="was not found")
def looks_at_losses(record):
    for update, ranks in enumerate(record["updates"]):
        losses = [mine["loss"] for mine in ranks]
        if max(losses) > 1000 * min(losses):
            return losses.index(max(losses)), update, "start"
    return None, None, "none"


@wrong("08.6", says="was not found")
def trusts_the_start(record):
    return found_fault(record, skip=("start",))


@wrong("08.6", says="was not found")
def trusts_the_reader(record):
    return found_fault(record, skip=("repeats",))


@wrong("08.6", says="This is a consequence")
def compares_weights_only(record):
    for update, ranks in enumerate(record["updates"]):
        for rank, mine in enumerate(ranks):
            if sum(alike(mine["weights"], other["weights"]) for other in ranks) == 1 and update:
                return rank, update, "own gradient"
    return found_fault(record)


@wrong("08.6", says="Last digits that differ")
def exactly_equal(record):
    return found_fault(record, alike=lambda a, b: a == b)


@wrong("08.6", says="the rank is None")
def blames_rank_0(record):
    rank, update, cause = found_fault(record)
    return 0 if cause in ("sum", "group") else rank, update, cause


@wrong("08.6", says="the cause is not")
def sum_or_group(record):
    rank, update, cause = found_fault(record)
    return rank, update, "group" if cause == "sum" else cause


@wrong("08.6", says="the cause is not")
def any_other_step(record):
    rank, update, cause = found_fault(record)
    return rank, update, "other rate" if cause == "not applied" else cause


@wrong("08.6", says="the rank is not")
def neighbor_of_it(record):
    rank, update, cause = found_fault(record)
    return rank if rank is None else (rank + 1) % len(record["start"]), update, cause


@wrong("08.6", says="In this update all is still well")
def one_update_early(record):
    rank, update, cause = found_fault(record)
    return rank, update - 1 if update and cause != "repeats" else update, cause


@wrong("08.6", says="Nothing is wrong with this job")
def different_losses(record):
    rank, update, cause = found_fault(record)
    return (0, 0, "own gradient") if cause == "none" else (rank, update, cause)


@wrong("08.6", says="is a fault, too, but not the first one")
def cause_after_cause(record):
    """Look for one cause in all updates, then for the next."""
    steps = {"start": "start", "repeats": "repeats", "not applied": "moved", "other rate": "moved"}
    for cause in ("start", "repeats", "own gradient", "sum", "group", "not applied", "other rate"):
        skip = {"start", "repeats", "used", "moved"} - {steps.get(cause, "used")}
        for updates in range(1, len(record["updates"]) + 1):
            found = found_fault({**record, "updates": record["updates"][:updates]}, skip=skip)
            if found[2] == cause:
                return found
    return None, None, "none"


@wrong("08.6", says="is a fault, too, but not the first one")
def weights_before_examples(record):
    """In each update: first the weights, then the gradients, then the examples."""
    for skip in (("start", "repeats", "used"), ("start", "repeats", "moved")):
        found = found_fault(record, skip=skip)
        right = found_fault(record)
        if found[2] != "none" and found[1] == right[1] and right[2] != "start":
            return found
    return found_fault(record)


@wrong("08.6", says="was not found")
def only_the_update_before(record):
    """An example counts as a repetition only if the same rank had it in the last update."""
    found = found_fault(record)
    if found[2] != "repeats":
        return found
    rank, update, _ = found
    mine, before = (set(record["updates"][place][rank]["examples"]) for place in (update, update - 1))
    return found if mine & before else found_fault(record, skip=("repeats",))


@wrong("08.6", says="the cause is not")
def half_the_rate(record):
    """Any change by more than the rate is called "own gradient"."""
    rank, update, cause = found_fault(record)
    if cause == "other rate":
        old = record["updates"][update - 1][rank]["weights"] if update else record["start"][rank]
        mine = record["updates"][update][rank]
        if abs(mine["weights"][0] - old[0]) > record["rate"] * abs(mine["used"][0]):
            return rank, update, "own gradient"
    return rank, update, cause


@right("08.6")
def with_tensors(record):
    return list(found_fault(record))


@right("08.6")
def with_allclose(record):
    def close(a, b):
        return torch.allclose(torch.tensor(a), torch.tensor(b))

    return found_fault(record, alike=close)


@right("08.6")
def with_rounding(record):
    def rounded(a, b):
        return max(abs(x - y) for x, y in zip(a, b, strict=True)) < 1e-6

    return found_fault(record, alike=rounded)


@wrong("08.6", says="the cause is not")
def small_changes_are_none(record):
    """A tolerance of a hundredth: an update with a small rate changes nothing."""
    found = found_fault(record)
    return (*found[:2], "not applied") if found[2] == "other rate" and record["rate"] < 0.01 else found


@wrong("08.6", says="in an earlier update already")
def the_last_time(record):
    """Goes through all updates, and keeps what it found last."""
    rank, update, cause = found_fault(record)
    if cause == "own gradient":
        mine = [rows[rank] for rows in record["updates"]]
        update = max(place for place, row in enumerate(mine) if alike(row["used"], row["gradient"]))
    return rank, update, cause


@wrong("08.6", says="the cause is not")
def not_applied_to_the_last_digit(record):
    def near(a, b, size):
        return all(abs(x - y) <= 1e-4 * size + 1e-9 for x, y in zip(a, b, strict=False))

    start, rate = record["start"], record["rate"]
    ranks = range(len(start))
    before = {rank: start[rank] for rank in ranks}
    scale = max(abs(x) for rank in ranks for x in start[rank])
    for rank in ranks:
        if not any(near(start[rank], start[other], scale / 100) for other in ranks if other != rank):
            return rank, 0, "start"
    seen = set()
    for number, update in enumerate(record["updates"]):
        for rank in ranks:
            if not seen.isdisjoint(update[rank]["examples"]):
                return rank, number, "repeats"
        seen.update(*(update[rank]["examples"] for rank in ranks))
        total = [math.fsum(column) for column in zip(*(update[rank]["gradient"] for rank in ranks), strict=False)]
        mean = [x / len(ranks) for x in total]
        size = max(abs(x) for rank in ranks for x in update[rank]["gradient"])
        off = [rank for rank in ranks if not near(update[rank]["used"], mean, size)]
        for rank in off:
            if near(update[rank]["used"], update[rank]["gradient"], size):
                return rank, number, "own gradient"
        if off:
            return None, number, "sum" if all(near(update[rank]["used"], total, size) for rank in off) else "group"
        steps = {rank: [rate * x for x in update[rank]["used"]] for rank in ranks}
        for rank in ranks:
            if list(update[rank]["weights"]) == list(before[rank]) and max(map(abs, steps[rank])) > 1e-6 * scale:
                return rank, number, "not applied"
        for rank in ranks:
            step, own = steps[rank], update[rank]["weights"]
            tolerance = 1e-2 * max(map(abs, step)) + 1e-7 * max(map(abs, before[rank]))
            if any(abs(b - s - a) > tolerance for b, s, a in zip(before[rank], step, own, strict=False)):
                return rank, number, "other rate"
        before = {rank: update[rank]["weights"] for rank in ranks}
    return None, None, "none"


@wrong("08.6", says="rank's gradient weighs the same in the mean", never="was not found")
def mean_over_examples(record):
    """Each rank's gradient weighs as much as it has examples."""
    updates = []
    for ranks in record["updates"]:
        each = sum(len(mine["examples"]) for mine in ranks) / len(ranks)
        scale = [len(mine["examples"]) / each for mine in ranks]
        weighed = [[x * times for x in mine["gradient"]] for mine, times in zip(ranks, scale, strict=True)]
        updates.append([{**mine, "gradient": own} for mine, own in zip(ranks, weighed, strict=True)])
    found = found_fault({**record, "updates": updates})
    return found if found[2] == "group" else found_fault(record)


@wrong("08.6", says="was not found")
def group_only_if_ranks_differ(record):
    found = found_fault(record)
    used = [mine["used"] for mine in record["updates"][found[1] or 0]]
    return (None, None, "none") if found[2] == "group" and all(alike(used[0], each) for each in used) else found


@wrong("08.6", says="is a fault, too, but not the first one")
def rank_by_rank(record):
    """Of two ranks whose weights are wrong, the first one."""
    found = found_fault(record)
    if found[2] != "not applied":
        return found
    _, update, _ = found
    before = record["updates"][update - 1] if update else [{"weights": start} for start in record["start"]]
    for rank, (old, mine) in enumerate(zip(before, record["updates"][update], strict=True)):
        right = [x - record["rate"] * step for x, step in zip(old["weights"], mine["used"], strict=True)]
        if not alike(mine["weights"], right):
            return rank, update, "not applied" if alike(mine["weights"], old["weights"]) else "other rate"
    return found


# 08.7 Read a timeline


def table_of(spans):
    table = {}
    for rank, name, begin, end in spans:
        table.setdefault((name, rank), []).append((begin, end))
    whole = max(end for *_, end in spans) - min(begin for _, _, begin, _ in spans)
    return table, 1 + max(rank for rank, *_ in spans), whole


def spent_in(table, name, rank):
    return sum(end - begin for begin, end in table[name, rank])


def read_spans(spans, share=0.15):
    table, ranks, whole = table_of(spans)
    updates = range(len(table["load", 0]))
    ready = [[table["backward", rank][update][1] for rank in range(ranks)] for update in updates]
    loads = [spent_in(table, "load", rank) for rank in range(ranks)]
    lags = sum(max(each) - sorted(each)[-2] for each in ready)
    if lags > share * whole:
        last = {each.index(max(each)) for each in ready}
        if len(last) > 1:
            return None, "uneven batches"
        slow = min(last)
        return slow, "data" if loads[slow] > share * whole else "straggler"
    if max(loads) > share * whole:
        return None, "data"
    left = sum(table["communication", 0][update][1] - max(ready[update]) for update in updates)
    if left < share * whole:
        return None, "fine"
    hidden = all(table["communication", 0][update][0] < ready[update][0] for update in updates)
    return None, "network" if hidden else "no overlap"


@wrong("08.7", says="most of it is waiting")
def much_communication(spans):
    table, ranks, whole = table_of(spans)
    busy = max(spent_in(table, "communication", rank) for rank in range(ranks)) / whole
    return (None, "network") if busy > 0.5 else read_spans(spans)


@wrong("08.7", says="waits *least*")
def the_one_that_waits(spans):
    table, ranks, _ = table_of(spans)
    rank, cause = read_spans(spans)
    waits = max(range(ranks), key=lambda rank: spent_in(table, "communication", rank))
    return rank if rank is None else waits, cause


@wrong("08.7", says="not the same one")
def slowest_in_all(spans):
    table, ranks, _ = table_of(spans)
    rank, cause = read_spans(spans)
    if cause != "uneven batches":
        return rank, cause
    return max(range(ranks), key=lambda rank: spent_in(table, "backward", rank)), "straggler"


@wrong("08.7", says="does it compute, or does it load?")
def late_is_slow(spans):
    rank, cause = read_spans(spans)
    return rank, cause if rank is None else "straggler"


@wrong("08.7", says="begin while the backward pass still runs")
def never_looks_at_the_beginning(spans):
    rank, cause = read_spans(spans)
    return rank, "network" if cause == "no overlap" else cause


@wrong("08.7", says="Nothing is wrong here")
def always_something(spans):
    rank, cause = read_spans(spans)
    return rank, "network" if cause == "fine" else cause


@wrong("08.7", says="was not found")
def seconds_not_shares(spans):
    table, ranks, _ = table_of(spans)
    loads = [spent_in(table, "load", rank) for rank in range(ranks)]
    rank, cause = read_spans(spans)
    return (rank, cause) if cause != "data" or max(loads) > 10_000 else (None, "fine")


@wrong("08.7", says="was not found")
def clock_from_zero(spans):
    first = min(begin for _, _, begin, _ in spans)
    return read_spans(spans, share=0.15 * (1 + first / (max(end for *_, end in spans) - first)))


@wrong("08.7", says="the rank is None")
def somebody_is_to_blame(spans):
    table, ranks, _ = table_of(spans)
    rank, cause = read_spans(spans)
    loads = [spent_in(table, "load", rank) for rank in range(ranks)]
    return loads.index(max(loads)) if cause == "data" else rank, cause


@wrong("08.7", says="most of it is waiting")
def visible_on_rank_0(spans):
    table, _, whole = table_of(spans)
    pairs = zip(table["communication", 0], table["backward", 0], strict=True)
    visible = sum(end - after for (_, end), (_, after) in pairs)
    overlaps = table["communication", 0][0][0] < table["backward", 0][0][1]
    return (None, "network" if overlaps else "no overlap") if visible > 0.15 * whole else read_spans(spans)


@wrong("08.7", says="same rank is the last in every update")
def any_lag_is_uneven(spans):
    rank, cause = read_spans(spans)
    return (None, "uneven batches") if cause == "straggler" else (rank, cause)


@right("08.7")
def finer_threshold(spans):
    return list(read_spans(spans, share=0.1))


@right("08.7")
def coarser_threshold(spans):
    return read_spans(spans, share=0.22)


@right("08.7")
def by_medians(spans):
    from statistics import median

    table, ranks, _ = table_of(spans)

    def typical(name, rank):
        return median(end - begin for begin, end in table[name, rank])

    def longest(name, rank):
        return max(end - begin for begin, end in table[name, rank])

    compute = [typical("forward", rank) + typical("backward", rank) for rank in range(ranks)]
    loads = [typical("load", rank) for rank in range(ranks)]
    usual = min(compute)
    if min(loads) > 0.3 * usual:
        return None, "data"
    if max(loads) > 0.3 * usual:
        return loads.index(max(loads)), "data"
    passes = [(name, rank) for name in ("forward", "backward") for rank in range(ranks)]
    if any(longest(*each) > 1.3 * min(end - begin for begin, end in table[each]) for each in passes):
        return None, "uneven batches"
    if max(compute) > 1.3 * usual:
        return compute.index(max(compute)), "straggler"
    begins, ends = zip(*table["communication", 0], strict=True)
    left = median(end - ready for end, (_, ready) in zip(ends, table["backward", 0], strict=True))
    if left < 0.2 * usual:
        return None, "fine"
    return None, "network" if begins[0] < table["backward", 0][0][1] else "no overlap"


def compared_in(spans, name):
    """The rank that computes longest in one pass alone is behind."""
    rank, cause = read_spans(spans)
    if cause not in ("straggler", "uneven batches"):
        return rank, cause
    table, ranks, _ = table_of(spans)
    times = sorted(spent_in(table, name, rank) for rank in range(ranks))
    longest = max(end - begin for rank in range(ranks) for begin, end in table[name, rank])
    return (rank, cause) if longest > 1.2 * times[0] / len(table[name, 0]) else (None, "fine")


@wrong("08.7", says="was not found")
def backward_alone(spans):
    return compared_in(spans, "backward")


@wrong("08.7", says="was not found")
def forward_alone(spans):
    return compared_in(spans, "forward")


# 08.8 What a hung job left


def taken_apart(text):
    """For each rank its end, log, stack and collectives."""
    ranks = {}
    for part in text.split("=== rank ")[1:]:
        head, *sections = part.split("--- ")
        found = {name: body for name, _, body in (section.partition("\n") for section in sections)}
        number, _, end = head.strip().partition(": ")
        record = [line for line in found.get("flight recorder", "").splitlines() if line]
        ranks[int(number)] = {"end": end, "log": found.get("log", ""), "stack": found.get("stack", ""), "calls": record}
    return ranks


def own_end(ranks):
    """Who was killed, or raised something of its own; with the cause."""
    killed = [rank for rank, left in ranks.items() if left["end"].endswith("-9")]
    raised = [rank for rank, left in ranks.items() if "Error" in left["log"] and "by peer" not in left["log"]]
    return (killed, "died") if killed else (raised, "raised") if raised else None


def in_messages(ranks):
    found = [rank for rank, left in ranks.items() if " in send\n" in left["stack"] or " in recv\n" in left["stack"]]
    return (found, "messages") if len(found) > 1 else None


def by_name(ranks):
    records = {rank: left["calls"] for rank, left in ranks.items() if left["calls"]}
    for number in range(max(map(len, records.values()))):
        there = [calls[number] for calls in records.values() if len(calls) > number]
        odd = [rank for rank, calls in records.items() if len(calls) > number and there.count(calls[number]) == 1]
        if odd and len(there) > 1:
            return odd, "another call"
    return None


def by_count(ranks):
    counts = {rank: len(left["calls"]) for rank, left in ranks.items() if left["calls"]}
    usual = max(counts.values(), key=list(counts.values()).count)
    odd = next(rank for rank, count in counts.items() if count != usual)
    if counts[odd] > usual:
        return [odd], "more"
    busy = ranks[odd]["stack"] and "torch" not in ranks[odd]["stack"]
    return [odd], "busy" if busy else "fewer"


@right("08.8")
def question_after_question(text):
    ranks = taken_apart(text)
    return own_end(ranks) or in_messages(ranks) or by_name(ranks) or by_count(ranks)


@right("08.8")
def line_by_line(text):
    ranks, section = {}, ""
    for line in text.splitlines():
        if line.startswith("==="):
            rank, end = line[9:].split(": ")
            mine = ranks[int(rank)] = {"end": end, "log": "", "stack": "", "calls": []}
        elif line.startswith("---"):
            section = line[4:]
        elif section == "flight recorder":
            mine["calls"].append(line)
        else:
            mine[section] += line + "\n"
    questions = (own_end, in_messages, by_name, by_count)
    return list(next(filter(None, (question(ranks) for question in questions))))


@right("08.8")
def the_last_call_first(text):
    """By the newest number that most ranks agree on, backwards; and the stacks instead of the records for messages."""
    ranks = taken_apart(text)
    tops = {rank: left["stack"].splitlines()[1].split()[-1] for rank, left in ranks.items() if left["stack"]}
    pair = sorted(rank for rank, top in tops.items() if top in ("send", "recv"))
    return own_end(ranks) or ((pair, "messages") if len(pair) > 1 else by_name(ranks) or by_count(ranks))


@wrong("08.8", says="it has lost another rank")
def first_traceback(text):
    ranks = taken_apart(text)
    loud = [rank for rank, left in ranks.items() if "Traceback" in left["log"]]
    return (loud[:1], "raised") if loud else question_after_question(text)


@wrong("08.8", says='"The rank to blame is the one that does not wait" is not a rule')
def whoever_ended_well(text):
    ranks = taken_apart(text)
    done = [rank for rank, left in ranks.items() if left["end"] == "exit code 0"]
    return own_end(ranks) or ((done[:1], "fewer") if done else question_after_question(text))


@wrong("08.8", says="in trouble only because of them")
def all_that_failed(text):
    ranks = taken_apart(text)
    failed = [rank for rank, left in ranks.items() if left["end"] not in ("exit code 0", "still running")]
    return (failed, question_after_question(text)[1]) if failed else question_after_question(text)


@wrong("08.8", says="Neither is more to blame")
def first_of_the_two(text):
    ranks, cause = question_after_question(text)
    return ranks[:1], cause


@wrong("08.8", says="The counts only follow from that")
def counts_only_of_a_job(text):
    ranks = taken_apart(text)
    shapes = {
        rank: {**left, "calls": [call.partition("[")[0] for call in left["calls"]]} for rank, left in ranks.items()
    }
    return own_end(ranks) or in_messages(ranks) or by_name(shapes) or by_count(ranks)


@wrong("08.8", says="is it still running, and what is at the top of its stack?")
def fewer_is_fewer(text):
    ranks, cause = question_after_question(text)
    return ranks, "fewer" if cause == "busy" else cause


@wrong("08.8", says="is it still running, and what is at the top of its stack?")
def always_busy(text):
    ranks, cause = question_after_question(text)
    return ranks, "busy" if cause == "fewer" else cause


@wrong("08.8", says="nor is one that waits for a message")
def busy_if_it_still_runs(text):
    guilty, cause = question_after_question(text)
    running = taken_apart(text)[guilty[0]]["end"] == "still running"
    return guilty, "busy" if cause in ("busy", "fewer") and running else cause


@wrong("08.8", says='"messages" takes two that wait for each other')
def one_alone_in_a_message(text):
    ranks = taken_apart(text)
    alone = [rank for rank, left in ranks.items() if " in recv\n" in left["stack"]]
    return (alone, "messages") if alone else question_after_question(text)


@wrong("08.8", says='Exit code -9 is "died"')
def every_end_is_an_exception(text):
    ranks, cause = question_after_question(text)
    return ranks, "raised" if cause == "died" else cause


@wrong("08.8", says="it is a victim")
def first_that_runs(text):
    ranks = taken_apart(text)
    running = [rank for rank, left in ranks.items() if left["end"] == "still running"]
    return (running[:1], question_after_question(text)[1]) if running else question_after_question(text)


@wrong("08.8", says="They wait for each other")
def records_before_messages(text):
    ranks = taken_apart(text)
    if not in_messages(ranks):
        return question_after_question(text)
    most = max(len(left["calls"]) for left in ranks.values())
    return [rank for rank, left in ranks.items() if len(left["calls"]) == most][:1], "more"


@wrong("08.8", says="it has lost another rank")
def a_lost_record_is_a_lost_rank(text):
    ranks = taken_apart(text)
    silent = [rank for rank, left in ranks.items() if not left["calls"]]
    return (silent, "died") if silent else question_after_question(text)


@wrong("08.8", says="No rank is named")
def says_nobody(text):
    found = question_after_question(text)
    return found if found[1] in ("died", "raised") else ([], found[1])
