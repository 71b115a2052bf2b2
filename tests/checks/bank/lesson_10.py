"""Answers to the exercises of lesson 10, other frameworks."""

from __future__ import annotations

from itertools import islice

import torch

from tests.checks.bank import right, wrong

# 10.1 Convert the weights

NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def in_order(array, gates, ours="ifco"):
    parts = dict(zip(gates, array.chunk(4, dim=-1), strict=True))
    return torch.cat([parts[gate] for gate in ours], dim=-1)


def named(*tensors):
    return dict(zip(NAMES, tensors, strict=True))


@wrong("10.1", says="PyTorch has it transposed")
def not_transposed(kernel, recurrent_kernel, bias, gates):
    return named(kernel, recurrent_kernel, bias, torch.zeros_like(bias))


@wrong("10.1", says="`reshape` and `view` keep the order in memory")
def reshaped(kernel, recurrent_kernel, bias, gates):
    k, r = in_order(kernel, gates), in_order(recurrent_kernel, gates)
    return named(k.reshape(-1, len(k)), r.reshape(-1, len(r)), in_order(bias, gates), torch.zeros_like(bias))


@wrong("10.1", says="it counts twice")
def bias_in_both(kernel, recurrent_kernel, bias, gates):
    b = in_order(bias, gates)
    return named(in_order(kernel, gates).T, in_order(recurrent_kernel, gates).T, b, b.clone())


@wrong("10.1", says="The bias is lost")
def no_bias(kernel, recurrent_kernel, bias, gates):
    nothing = torch.zeros_like(bias)
    return named(in_order(kernel, gates).T, in_order(recurrent_kernel, gates).T, nothing, nothing)


@wrong("10.1", says="in their original order")
def any_order_is_ours(kernel, recurrent_kernel, bias, gates):
    return named(kernel.T, recurrent_kernel.T, bias, torch.zeros_like(bias))


@wrong("10.1", says="the inverse permutation")
def from_ours_to_theirs(kernel, recurrent_kernel, bias, gates):
    k, r, b = (in_order(array, "ifco", gates) for array in (kernel, recurrent_kernel, bias))
    return named(k.T, r.T, b, torch.zeros_like(b))


@wrong("10.1", says="Some are in PyTorch's order and some are not")
def forgets_the_bias(kernel, recurrent_kernel, bias, gates):
    return named(in_order(kernel, gates).T, in_order(recurrent_kernel, gates).T, bias, torch.zeros_like(bias))


@wrong("10.1", says="Some are in PyTorch's order and some are not")
def forgets_the_recurrent_kernel(kernel, recurrent_kernel, bias, gates):
    return named(in_order(kernel, gates).T, recurrent_kernel.T, in_order(bias, gates), torch.zeros_like(bias))


@wrong("10.1", says="the keys are")
def three_weights(kernel, recurrent_kernel, bias, gates):
    return dict(zip(NAMES[:3], (kernel.T, recurrent_kernel.T, bias), strict=True))


@wrong("10.1", says="Return a dict")
def a_tuple(kernel, recurrent_kernel, bias, gates):
    return kernel.T, recurrent_kernel.T, bias, torch.zeros_like(bias)


@right("10.1")
def half_in_each(kernel, recurrent_kernel, bias, gates):
    half = in_order(bias, gates) / 2
    return named(in_order(kernel, gates).T, in_order(recurrent_kernel, gates).T, half, half)


@right("10.1")
def by_index(kernel, recurrent_kernel, bias, gates):
    hidden = len(bias) // 4
    places = torch.cat([torch.arange(hidden) + hidden * gates.index(gate) for gate in "ifco"])
    weights = named(kernel.T[places], recurrent_kernel.T[places], torch.zeros(4 * hidden), bias[places])
    return dict(reversed(weights.items()))


@right("10.1")
def through_four_dimensions(kernel, recurrent_kernel, bias, gates):
    order = [gates.index(gate) for gate in "ifco"]

    def turned(array):
        return array.T.reshape(4, -1, len(array))[order].flatten(0, 1)

    return named(turned(kernel), turned(recurrent_kernel), bias.view(4, -1)[order].flatten(), 0 * bias)


@wrong("10.1", says="You change what you were given")
def reorders_in_place(kernel, recurrent_kernel, bias, gates):
    for array in (kernel, recurrent_kernel, bias):
        array.copy_(torch.cat([array.chunk(4, -1)[gates.index(gate)] for gate in "ifco"], -1))
    weights = (kernel.T, recurrent_kernel.T, bias, torch.zeros_like(bias))
    return dict(zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), weights, strict=True))


@wrong("10.1", says="You take a gate to be as wide as the inputs")
def as_wide_as_the_inputs(kernel, recurrent_kernel, bias, gates):
    def ordered(array):
        starts = [len(kernel) * gates.index(gate) for gate in "ifco"]
        return torch.cat([array[..., start : start + len(kernel)] for start in starts], -1)

    weights = (ordered(kernel).T, ordered(recurrent_kernel).T, ordered(bias), 0 * ordered(bias))
    return dict(zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), weights, strict=True))


@wrong("10.1", says="`reshape` and `view` keep the order in memory")
def one_matrix_reshaped(kernel, recurrent_kernel, bias, gates):
    parts = [dict(zip(gates, each.chunk(4, dim=-1), strict=True)) for each in (kernel, recurrent_kernel, bias)]
    kernel, recurrent_kernel, bias = (torch.cat([part[gate] for gate in "ifco"], dim=-1) for part in parts)
    return {
        "weight_ih_l0": kernel.T,
        "weight_hh_l0": recurrent_kernel.reshape(-1, len(recurrent_kernel)),
        "bias_ih_l0": bias,
        "bias_hh_l0": torch.zeros_like(bias),
    }


@wrong("10.1", says="Each gate's part of the recurrent kernel is in the right place, but not transposed")
def parts_one_below_the_other(kernel, recurrent_kernel, bias, gates):
    parts = torch.cat(in_order(recurrent_kernel, gates).chunk(4, dim=-1))
    return named(in_order(kernel, gates).T, parts, in_order(bias, gates), torch.zeros_like(bias))


@wrong("10.1", says="in an order that is neither the one they came in nor PyTorch's")
def g_comes_last(kernel, recurrent_kernel, bias, gates):
    k, r, b = (in_order(array, gates, "ifoc") for array in (kernel, recurrent_kernel, bias))
    return named(k.T, r.T, b, torch.zeros_like(b))


@wrong("10.1", says="You add 1 to the forget gate's bias")
def unit_forget_bias(kernel, recurrent_kernel, bias, gates):
    k, r, b = (in_order(array, gates) for array in (kernel, recurrent_kernel, bias))
    b[len(b) // 4 : len(b) // 2] += 1
    return named(k.T, r.T, b, torch.zeros_like(b))


# 10.2 Fix the loss


@wrong("10.2", says="about n times too large")
def mean_per_replica(losses, mask, all_reduce):
    return (losses * mask).sum() / mask.sum().clamp(min=1)


@wrong("10.2", says="the mean of the replicas' means")
def mean_of_means(losses, mask, all_reduce):
    return (losses * mask).sum() / mask.sum().clamp(min=1) / all_reduce(torch.tensor(1.0))


@wrong("10.2", says="right where gradients are *averaged*")
def as_for_ddp(losses, mask, all_reduce):
    return (losses * mask).sum() / all_reduce(mask.sum()) * all_reduce(torch.tensor(1.0))


@wrong("10.2", says="nothing is averaged")
def divided_twice(losses, mask, all_reduce):
    return (losses * mask).sum() / all_reduce(mask.sum()) / all_reduce(torch.tensor(1.0))


@wrong("10.2", says="as `compute_average_loss` does")
def by_sequences(losses, mask, all_reduce):
    return (losses * mask).sum() / all_reduce(torch.tensor(float(len(losses))))


@wrong("10.2", says="Each sequence has one vote")
def votes(losses, mask, all_reduce):
    means = (losses * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
    return means.sum() / all_reduce(torch.tensor(float(len(losses))))


@wrong("10.2", says="The padding is in the count")
def by_the_rectangle(losses, mask, all_reduce):
    return (losses * mask).sum() / all_reduce(torch.tensor(float(mask.numel())))


@wrong("10.2", says="The padding is in the sum")
def with_the_padding(losses, mask, all_reduce):
    return losses.sum() / all_reduce(mask.sum())


@wrong("10.2", says="grows with the batch")
def never_divided(losses, mask, all_reduce):
    return (losses * mask).sum()


@wrong("10.2", says="cannot reach the weights")
def reduced_the_loss(losses, mask, all_reduce):
    return all_reduce((losses * mask).sum()) / all_reduce(mask.sum())


@wrong("10.2", says="cannot reach the weights")
def through_item(losses, mask, all_reduce):
    return torch.tensor((losses * mask).sum().item()) / all_reduce(mask.sum())


@right("10.2")
def chooses_steps(losses, mask, all_reduce):
    return losses[mask.bool()].sum() / all_reduce(mask.sum())


@right("10.2")
def scales_first(losses, mask, all_reduce):
    share = mask / all_reduce(torch.tensor([float(mask.count_nonzero())]))
    return (share * losses).sum()


@right("10.2")
def in_python(losses, mask, all_reduce):
    count = all_reduce(float(mask.sum()))
    return sum(losses[mask == 1], torch.zeros((), dtype=losses.dtype) + 0 * losses[0, 0]) / count


@wrong("10.2", says="Steps with a loss of 0 are missing from the count")
def zeros_are_padding(losses, mask, all_reduce):
    return (losses * mask).sum() / all_reduce((losses * mask != 0).sum())


@wrong("10.2", says="rank 2 waits in all_reduce at Cell In[1]")
def nothing_to_add(losses, mask, all_reduce):
    if mask.sum() == 0:
        return losses.sum() * 0
    return (losses * mask).sum() / all_reduce(mask.sum())


@wrong("10.2", says="Only the replicas without steps that count have no gradient", never="`detach()`")
def a_constant_when_empty(losses, mask, all_reduce):
    count = all_reduce(mask.sum())
    return (losses * mask).sum() / count if mask.any() else torch.zeros(())


# 10.3 Every example once


@wrong("10.3", says="Every worker gets every example")
def everything(order, batch, worker, workers):
    return [order[start : start + batch] for start in range(0, len(order), batch)]


@wrong("10.3", says="some are never used. This is what you get if the remainder is dropped")
def drop_remainder(order, batch, worker, workers):
    return [order[start : start + batch][worker::workers] for start in range(0, len(order) - batch + 1, batch)]


@wrong("10.3", says="some appear more than once")
def filled_up(order, batch, worker, workers):
    each = -(-batch // workers)
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]
    return [[part[(worker * each + place) % len(part)] for place in range(each)] for part in batches]


@wrong("10.3", says="keep the empty list")
def without_empty_shares(order, batch, worker, workers):
    shares = [order[start : start + batch][worker::workers] for start in range(0, len(order), batch)]
    return [share for share in shares if share]


@wrong("10.3", says="Cut the *order* into global batches first")
def shard_then_batch(order, batch, worker, workers):
    own, each = order[worker::workers], max(1, batch // workers)
    return [own[start : start + each] for start in range(0, len(own), each)]


@wrong("10.3", says="Cut the *order* into global batches first")
def shard_then_global_batch(order, batch, worker, workers):
    own = order[worker::workers]
    return [own[start : start + batch] for start in range(0, len(own), batch)]


@wrong("10.3", says="Each worker gets whole batches")
def whole_batches(order, batch, worker, workers):
    return [order[start : start + batch] for start in range(0, len(order), batch)][worker::workers]


@wrong("10.3", says="one worker has a larger part than it needs to")
def the_last_has_the_rest(order, batch, worker, workers):
    def share(part):
        each = len(part) // workers
        return part[worker * each :] if worker == workers - 1 else part[worker * each : (worker + 1) * each]

    return [share(order[start : start + batch]) for start in range(0, len(order), batch)]


@wrong("10.3", says="one worker has a larger part than it needs to")
def one_does_it_all(order, batch, worker, workers):
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]
    return [part if worker == 0 else [] for part in batches]


@wrong("10.3", says="times in an epoch")
def by_number(order, batch, worker, workers):
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]
    return [[place for place in range(len(part)) if place % workers == worker] for part in batches]


@wrong("10.3", says="The plan depends on the process that makes it")
def turned_by_a_hash(order, batch, worker, workers):
    """Each worker's part of a batch begins at a place that the hash of a text says."""
    first = hash("first worker") + worker
    return [order[start : start + batch][first % workers :: workers] for start in range(0, len(order), batch)]


@right("10.3")
def in_stretches(order, batch, worker, workers):
    def share(part):
        return part[len(part) * worker // workers : len(part) * (worker + 1) // workers]

    return [share(order[start : start + batch]) for start in range(0, len(order), batch)]


@right("10.3")
def as_a_generator(order, batch, worker, workers):
    examples = iter(order)
    while part := list(islice(examples, batch)):
        yield part[worker::workers]


@right("10.3")
def from_the_other_end(order, batch, worker, workers):
    steps = -(-len(order) // batch)
    return [tuple(order[step * batch :][:batch][workers - 1 - worker :: workers]) for step in range(steps)]


@wrong("10.3", says="You change what you were given")
def takes_them_out(order, batch, worker, workers):
    shares = []
    while order:
        shares.append(order[:batch][worker::workers])
        del order[:batch]
    return shares


@wrong("10.3", says="missing even from a full batch")
def equal_parts_alone(order, batch, worker, workers):
    each = batch // workers
    return [order[start + worker * each :][:each] for start in range(0, len(order), batch)]


# 10.4 The sum in shard_map


def own_sum(losses_of, inputs, mask):
    return lambda weights: (losses_of(weights, inputs) * mask).sum()


@wrong("10.4", says="`jax.grad` has summed their gradient already")
def grad_then_psum(losses_of, weights, inputs, mask, axis):
    import jax

    total = jax.lax.psum(mask.sum(), axis)
    return jax.lax.psum(jax.grad(own_sum(losses_of, inputs, mask))(weights) / total, axis)


@wrong("10.4", says="Each device divides by its own count")
def own_means(losses_of, weights, inputs, mask, axis):
    import jax

    return jax.grad(lambda w: own_sum(losses_of, inputs, mask)(w) / mask.sum())(weights)


@wrong("10.4", says="the mean of the devices' means")
def mean_of_own_means(losses_of, weights, inputs, mask, axis):
    import jax

    return jax.grad(lambda w: jax.lax.pmean(own_sum(losses_of, inputs, mask)(w) / mask.sum(), axis))(weights)


@wrong("10.4", says="too small by a factor of the number of devices")
def pmean_of_the_sum(losses_of, weights, inputs, mask, axis):
    import jax

    total = jax.lax.psum(mask.sum(), axis)
    return jax.grad(lambda w: jax.lax.pmean(own_sum(losses_of, inputs, mask)(w), axis) / total)(weights)


@wrong("10.4", says="the gradient of the sum")
def never_divides(losses_of, weights, inputs, mask, axis):
    import jax

    return jax.grad(own_sum(losses_of, inputs, mask))(weights)


@wrong("10.4", says="Steps that do not count are included")
def forgets_the_mask(losses_of, weights, inputs, mask, axis):
    import jax

    total = jax.lax.psum(mask.sum(), axis)
    return jax.grad(lambda w: losses_of(w, inputs).sum() / total)(weights)


@wrong("10.4", says="differs from device to device")
def only_my_own(losses_of, weights, inputs, mask, axis):
    import jax

    own = jax.lax.pcast(weights, axis, to="varying")
    return jax.grad(own_sum(losses_of, inputs, mask))(own) / jax.lax.psum(mask.sum(), axis)


@wrong("10.4", says="`jax.grad` wants one number")
def of_a_vector(losses_of, weights, inputs, mask, axis):
    import jax

    return jax.grad(lambda w: losses_of(w, inputs) * mask)(weights)


@wrong("10.4", says="counts as one")
def at_least_one_step_per_device(losses_of, weights, inputs, mask, axis):
    import jax
    import jax.numpy as jnp

    count = jax.lax.psum(jnp.maximum(mask.sum(), 1), axis)
    return jax.grad(lambda weights: (losses_of(weights, inputs) * mask).sum() / count)(weights)


@right("10.4")
def grad_of_the_psum(losses_of, weights, inputs, mask, axis):
    import jax

    def loss(weights):
        total, count = jax.lax.psum(((losses_of(weights, inputs) * mask).sum(), mask.sum()), axis)
        return total / count

    return jax.grad(loss)(weights)


@right("10.4")
def as_in_pytorch(losses_of, weights, inputs, mask, axis):
    import jax

    own = jax.lax.pcast(weights, axis, to="varying")
    gradient = jax.grad(own_sum(losses_of, inputs, mask))(own)
    return jax.lax.psum(gradient, axis) / jax.lax.psum(mask.sum(), axis)


@right("10.4")
def with_vjp(losses_of, weights, inputs, mask, axis):
    import jax

    _, back = jax.vjp(lambda w: losses_of(w, inputs), weights)
    (gradient,) = back(mask / jax.lax.psum(mask.sum(), axis))
    return gradient


@wrong("10.4", says="2 and 3 steps on 4 devices of the axis 'rows'")
def one_name_for_all_axes(losses_of, weights, inputs, mask, axis):
    import jax

    total = jax.lax.psum(mask.sum(), "data")
    return jax.grad(own_sum(losses_of, inputs, mask))(weights) / total


@wrong("10.4", says="if you divide by the mean of the devices' counts")
def divided_by_the_mean_count(losses_of, weights, inputs, mask, axis):
    import jax

    return jax.grad(own_sum(losses_of, inputs, mask))(weights) / jax.lax.pmean(mask.sum(), axis)


@wrong("10.4", says="something divides by it, as `pmean` does")
def divided_by_the_devices(losses_of, weights, inputs, mask, axis):
    import jax

    total = jax.lax.psum(mask.sum(), axis) * jax.lax.axis_size(axis)
    return jax.grad(own_sum(losses_of, inputs, mask))(weights) / total
