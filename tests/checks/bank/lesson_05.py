"""Answers to the exercises of lesson 05, wrong and right."""

from functools import cache
from itertools import accumulate, combinations, combinations_with_replacement, pairwise, product

import torch
import torch.distributed as dist
from torch import nn

from tests.checks.bank import NEVER_WAITS, right, wrong

# --- 05.1 Back through the edge ---


def received_from(rank, shape):
    tensor = torch.empty(shape, dtype=torch.float64)
    dist.recv(tensor, rank)
    return tensor


def there(stage, inputs, shape):
    """The way forward: what came in, and what goes out."""
    rank = dist.get_rank()
    if inputs is None:
        inputs = received_from(rank - 1, shape).requires_grad_()
    outputs = stage(inputs)
    if rank < dist.get_world_size() - 1:
        dist.send(outputs.detach().contiguous(), rank + 1)
    return inputs, outputs


@wrong("05.1", says="all ranks take part in what concerns two of them")
def tells_everybody(stage, inputs, loss, shape):
    """Every edge is a broadcast, forward and back."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own, outputs, gradient = inputs, None, None
    for source in range(ranks):
        if source == rank:
            outputs = stage(own)
        message = outputs.detach().contiguous() if source == rank else torch.empty(shape, dtype=torch.float64)
        dist.broadcast(message, source)
        if source == rank - 1:
            own = message.requires_grad_()
    for source in reversed(range(ranks)):
        if source == rank:
            (loss(outputs) if loss else outputs).backward(gradient)
        back = own.grad if source == rank and rank else torch.empty(shape, dtype=torch.float64)
        dist.broadcast(back.contiguous(), source)
        if source == rank + 1:
            gradient = back


@wrong("05.1", says="at a barrier")
def waits_for_all(stage, inputs, loss, shape):
    rank = dist.get_rank()
    inputs, outputs = there(stage, inputs, shape)
    dist.barrier()
    if loss:
        loss(outputs).backward()
    else:
        outputs.backward(received_from(rank + 1, shape))
    if rank:
        dist.send(inputs.grad.contiguous(), rank - 1)


@wrong("05.1", says="there are more messages")
def sends_the_shape_first(stage, inputs, loss, shape):
    rank = dist.get_rank()
    if inputs is None:
        size = torch.empty(len(shape), dtype=torch.int64)
        dist.recv(size, rank - 1)
        inputs = received_from(rank - 1, size.tolist()).requires_grad_()
    outputs = stage(inputs)
    if loss is None:
        dist.send(torch.tensor(outputs.shape), rank + 1)
        dist.send(outputs.detach().contiguous(), rank + 1)
        outputs.backward(received_from(rank + 1, shape))
    else:
        loss(outputs).backward()
    if rank:
        dist.send(inputs.grad.contiguous(), rank - 1)


@wrong("05.1", says="A stage runs more than once")
def runs_the_stage_again(stage, inputs, loss, shape):
    rank = dist.get_rank()
    inputs, _ = there(stage, inputs, shape)
    if loss:
        loss(stage(inputs)).backward()
    else:
        gradient = received_from(rank + 1, shape)
        stage(inputs).backward(gradient)
    if rank:
        dist.send(inputs.grad.contiguous(), rank - 1)


@wrong("05.1", says="no gradient at all")
def forward_only(stage, inputs, loss, shape):
    _, outputs = there(stage, inputs, shape)
    if loss:
        loss(outputs).backward()


@wrong("05.1", says="no gradient at all")
def receives_and_forgets(stage, inputs, loss, shape):
    rank = dist.get_rank()
    inputs, outputs = there(stage, inputs, shape)
    if loss:
        loss(outputs).backward()
    else:
        outputs.grad = received_from(rank + 1, shape)
    if rank:
        dist.send(
            torch.zeros(shape, dtype=torch.float64) if inputs.grad is None else inputs.grad.contiguous(), rank - 1
        )


@wrong("05.1", says="with respect to your *outputs*")
def the_middle_hands_it_on(stage, inputs, loss, shape):
    rank = dist.get_rank()
    inputs, outputs = there(stage, inputs, shape)
    gradient = None if loss else received_from(rank + 1, shape)
    (loss(outputs) if loss else outputs).backward(gradient)
    if rank:
        dist.send((inputs.grad if loss else gradient).contiguous(), rank - 1)


@wrong("05.1", says="without it")
def starts_from_ones(stage, inputs, loss, shape):
    rank = dist.get_rank()
    inputs, outputs = there(stage, inputs, shape)
    if loss:
        loss(outputs).backward()
    else:
        received_from(rank + 1, shape)
        outputs.backward(torch.ones_like(outputs))
    if rank:
        dist.send(inputs.grad.contiguous(), rank - 1)


@wrong("05.1", says="with respect to your *outputs*")
def sends_the_gradient_of_its_outputs(stage, inputs, loss, shape):
    rank = dist.get_rank()
    inputs, outputs = there(stage, inputs, shape)
    gradient = None if loss else received_from(rank + 1, shape)
    if loss:
        (gradient,) = torch.autograd.grad(loss(outputs), outputs, retain_graph=True)
    outputs.backward(gradient)
    if rank:
        dist.send(gradient.contiguous(), rank - 1)


@wrong("05.1", says="the activations that you have received")
def sends_its_inputs_back(stage, inputs, loss, shape):
    rank = dist.get_rank()
    inputs, outputs = there(stage, inputs, shape)
    if loss:
        loss(outputs).backward()
    else:
        outputs.backward(received_from(rank + 1, shape))
    if rank:
        dist.send(inputs.data.contiguous(), rank - 1)


@wrong("05.1", says="No stage has a gradient, not even the last")
def loses_the_graph_in_between(stage, inputs, loss, shape):
    rank = dist.get_rank()
    inputs, outputs = there(stage, inputs, shape)
    outputs = outputs.detach().requires_grad_()
    if loss:
        loss(outputs).backward()
    else:
        outputs.backward(received_from(rank + 1, shape))
    if rank:
        dist.send(outputs.grad.contiguous(), rank - 1)


@wrong("05.1", says="several backward passes")
def goes_back_twice(stage, inputs, loss, shape):
    rank = dist.get_rank()
    inputs, outputs = there(stage, inputs, shape)
    gradient = None if loss else received_from(rank + 1, shape)
    start = loss(outputs) if loss else outputs
    start.backward(gradient, retain_graph=True)
    back = inputs.grad.clone() if rank else None
    start.backward(gradient)
    if rank:
        dist.send(back.contiguous(), rank - 1)


@wrong("05.1", says="The last stage is right, but one before it is not", never="several backward passes")
def sends_back_a_mean(stage, inputs, loss, shape):
    rank = dist.get_rank()
    inputs, outputs = there(stage, inputs, shape)
    (loss(outputs) if loss else outputs).backward(None if loss else received_from(rank + 1, shape))
    if rank:
        dist.send((inputs.grad / dist.get_world_size()).contiguous(), rank - 1)


@wrong("05.1", says=NEVER_WAITS)
def sends_and_forgets(stage, inputs, loss, shape):
    """Both ways with `isend`, and nobody waits for it."""
    rank = dist.get_rank()
    if inputs is None:
        inputs = received_from(rank - 1, shape).requires_grad_()
    outputs = stage(inputs)
    if loss is None:
        dist.isend(outputs.detach().contiguous(), rank + 1)
    (loss(outputs) if loss else outputs).backward(None if loss else received_from(rank + 1, shape))
    if rank:
        dist.isend(inputs.grad.contiguous(), rank - 1)


@wrong("05.1", says=NEVER_WAITS)
def gradient_sent_and_forgotten(stage, inputs, loss, shape):
    rank = dist.get_rank()
    inputs, outputs = there(stage, inputs, shape)
    (loss(outputs) if loss else outputs).backward(None if loss else received_from(rank + 1, shape))
    if rank:
        dist.isend(inputs.grad.contiguous(), rank - 1)


@wrong("05.1", says=NEVER_WAITS)
def gradient_received_and_forgotten(stage, inputs, loss, shape):
    rank = dist.get_rank()
    inputs, outputs = there(stage, inputs, shape)
    gradient = torch.zeros(shape, dtype=torch.float64)
    if loss is None:
        dist.irecv(gradient, rank + 1)
    (loss(outputs) if loss else outputs).backward(None if loss else gradient)
    if rank:
        dist.send(inputs.grad.contiguous(), rank - 1)


@wrong("05.1", says="divided by the number of its elements")
def goes_on_from_a_mean(stage, inputs, loss, shape):
    rank = dist.get_rank()
    inputs, outputs = there(stage, inputs, shape)
    (loss(outputs) if loss else (outputs * received_from(rank + 1, shape)).mean()).backward()
    if rank:
        dist.send(inputs.grad.contiguous(), rank - 1)


@wrong("05.1", says="Only the last rank gets `loss`")
def for_two_ranks(stage, inputs, loss, shape):
    rank = dist.get_rank()
    if rank == 0:
        there(stage, inputs, shape)[1].backward(received_from(1, shape))
    else:
        inputs = received_from(rank - 1, shape).requires_grad_()
        loss(stage(inputs)).backward()
        dist.send(inputs.grad.contiguous(), rank - 1)


@right("05.1")
def with_autograd_grad(stage, inputs, loss, shape):
    rank = dist.get_rank()
    inputs, outputs = there(stage, inputs, shape)
    wanted = [*stage.parameters(), *([inputs] if rank else [])]
    start, gradient = (loss(outputs), None) if loss else (outputs, received_from(rank + 1, shape))
    found = torch.autograd.grad(start, wanted, gradient)
    for parameter, own in zip(stage.parameters(), found, strict=False):
        parameter.grad = own
    if rank:
        dist.send(found[-1].contiguous(), rank - 1)


@right("05.1")
def with_messages_that_do_not_wait(stage, inputs, loss, shape):
    rank, pending = dist.get_rank(), []
    if inputs is None:
        inputs = torch.zeros(shape, dtype=torch.float64)
        dist.irecv(inputs, rank - 1).wait()
        inputs.requires_grad_(True)
    outputs = stage(inputs)
    gradient = None
    if loss is None:
        gradient = torch.zeros(shape, dtype=torch.float64)
        message = outputs.detach().clone(memory_format=torch.contiguous_format)
        pending.append(dist.isend(message, rank + 1))
        dist.irecv(gradient, rank + 1).wait()
    torch.autograd.backward(loss(outputs) if loss else outputs, gradient)
    if rank:
        pending.append(dist.isend(inputs.grad.contiguous(), rank - 1))
    for work in pending:
        work.wait()


@right("05.1")
def with_a_product(stage, inputs, loss, shape):
    """The backward pass of (outputs * gradient).sum() is that of the gradient."""
    rank = dist.get_rank()
    inputs, outputs = there(stage, inputs, shape)
    (loss(outputs) if loss else (outputs * received_from(rank + 1, shape)).sum()).backward()
    if rank:
        dist.send(inputs.grad.contiguous(), rank - 1)


@right("05.1")
def with_hooks(stage, inputs, loss, shape):
    rank = dist.get_rank()
    inputs, outputs = there(stage, inputs, shape)
    if rank:
        inputs.register_hook(lambda gradient: dist.send(gradient.contiguous(), rank - 1))
    if loss:
        loss(outputs).backward()
    else:
        outputs.backward(received_from(rank + 1, shape))


@right("05.1")
def goes_back_from_a_scalar(stage, inputs, loss, shape):
    # Expects the gradient before the stage runs, and goes back from a scalar on every rank.
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    gradient, leaf, going = torch.empty(shape, dtype=torch.float64), inputs, []
    coming = dist.irecv(gradient, rank + 1) if rank < last else None
    if rank > 0:
        leaf = torch.empty(shape, dtype=torch.float64)
        dist.irecv(leaf, rank - 1).wait()
        leaf.requires_grad_(True)
    outputs = stage(leaf)
    if coming is None:
        scalar = loss(outputs)
    else:
        activations = outputs.detach().clone(memory_format=torch.contiguous_format)
        going.append(dist.isend(activations, rank + 1))
        coming.wait()
        scalar = torch.einsum("i,i->", outputs.reshape(-1), gradient.reshape(-1))
    scalar.backward()
    if rank > 0:
        back = torch.zeros(shape, dtype=torch.float64) if leaf.grad is None else leaf.grad.contiguous()
        going.append(dist.isend(back, rank - 1))
    for message in going:
        message.wait()


# --- 05.2 Place the blocks ---


def cut(bounds):
    return [list(range(start, stop)) for start, stop in pairwise(bounds)]


def all_placements(blocks, devices):
    return [cut((0, *chosen, blocks)) for chosen in combinations_with_replacement(range(blocks + 1), devices - 1)]


def takes(seconds, parts):
    return [sum(own[block] for block in part) for own, part in zip(seconds, parts, strict=True)]


def needs(sizes, parts):
    return [sum(sizes[block] for block in part) for part in parts]


def best(seconds, sizes, memory, fits=lambda need, own: need <= own, cost=max, ways=None):
    ways = all_placements(len(sizes), len(memory)) if ways is None else ways
    fitting = [w for w in ways if all(fits(n, m) for n, m in zip(needs(sizes, w), memory, strict=True))]
    return min(fitting, key=lambda parts: cost(takes(seconds, parts)), default=None)


@wrong("05.2", says="A device may stay empty")
def every_device_works(seconds, sizes, memory):
    blocks, devices = len(sizes), len(memory)
    ways = [cut((0, *chosen, blocks)) for chosen in combinations(range(1, blocks), devices - 1)]
    return best(seconds, sizes, memory, ways=ways)


@wrong("05.2", says="*exactly* full is refused")
def strictly_below_the_limit(seconds, sizes, memory):
    return best(seconds, sizes, memory, fits=lambda need, own: need < own)


@wrong("05.2", says="as if all devices were alike")
def times_of_the_first_device(seconds, sizes, memory):
    return best([seconds[0]] * len(memory), sizes, memory)


@wrong("05.2", says="as if all devices were alike")
def mean_times(seconds, sizes, memory):
    means = [sum(column) / len(column) for column in zip(*seconds, strict=True)]
    return best([means] * len(memory), sizes, memory)


@wrong("05.2", says="The *sum* of all devices' seconds")
def least_total_time(seconds, sizes, memory):
    return best(seconds, sizes, memory, cost=sum)


@wrong("05.2", says="Leave out the placements that do not fit")
def does_not_look_at_memory(seconds, sizes, memory):
    parts = best(seconds, sizes, [float("inf")] * len(memory))
    return None if best(seconds, sizes, memory) is None else parts


@wrong("05.2", says="Leave out the placements that do not fit")
def the_largest_memory_for_all(seconds, sizes, memory):
    return best(seconds, sizes, [max(memory)] * len(memory))


@wrong("05.2", says="Every device has a memory of its own")
def the_smallest_memory_for_all(seconds, sizes, memory):
    return best(seconds, sizes, [min(memory)] * len(memory))


@wrong("05.2", says="you return None")
def gives_up(seconds, sizes, memory):
    parts = best(seconds, sizes, [float("inf")] * len(memory))
    return parts if all(n <= m for n, m in zip(needs(sizes, parts), memory, strict=True)) else None


@wrong("05.2", says="no placement fits, and you return one")
def always_finds_one(seconds, sizes, memory):
    return best(seconds, sizes, memory) or best(seconds, sizes, [float("inf")] * len(memory))


@wrong("05.2", says="no placement fits, and you return one")
def one_device_takes_all(seconds, sizes, memory):
    return [list(range(len(sizes)))] if len(memory) == 1 else best(seconds, sizes, memory)


@wrong("05.2", says="you return an empty list")
def empty_list_for_none(seconds, sizes, memory):
    return best(seconds, sizes, memory) or []


@wrong("05.2", says="or back and forth")
def in_turn(seconds, sizes, memory):
    return [list(range(device, len(sizes), len(memory))) for device in range(len(memory))]


@wrong("05.2", says="or back and forth")
def any_block_anywhere(seconds, sizes, memory):
    parts = [[] for _ in memory]
    for block in sorted(range(len(sizes)), key=lambda block: -max(own[block] for own in seconds)):
        fitting = [d for d in range(len(memory)) if needs(sizes, [[*parts[d], block]])[0] <= memory[d]]
        if not fitting:
            return None
        fastest = min(fitting, key=lambda d: takes(seconds, parts)[d] + seconds[d][block])
        parts[fastest].append(block)
    return [sorted(part) for part in parts]


@wrong("05.2", says="fill each device until it is full")
def first_fit(seconds, sizes, memory):
    parts, device = [[] for _ in memory], 0
    for block in range(len(sizes)):
        while device < len(memory) and needs(sizes, [[*parts[device], block]])[0] > memory[device]:
            device += 1
        if device == len(memory):
            return None
        parts[device].append(block)
    return parts


@wrong("05.2", says="the same number of blocks")
def equally_many(seconds, sizes, memory):
    each, extra = divmod(len(sizes), len(memory))
    bounds = [device * each + min(device, extra) for device in range(len(memory) + 1)]
    return cut(bounds)


@wrong("05.2", says="one for each device")
def leaves_empty_devices_out(seconds, sizes, memory):
    parts = best(seconds, sizes, memory)
    return parts and [part for part in parts if part]


@wrong("05.2", says="as if all devices were alike")
def with_the_library(seconds, sizes, memory):
    from course_lib.model_parallel.placement import BlockCost, CannotPlace, balanced

    costs = [BlockCost(second, size) for second, size in zip(seconds[0], sizes, strict=True)]
    try:
        placement = balanced(costs, len(memory), memory[0])
    except CannotPlace:
        return None
    return [placement.blocks_of(device) for device in range(len(memory))]


@wrong("05.2", says="another one that fits is faster")
def slowest_block(seconds, sizes, memory):
    """Make the slowest block of any device as fast as possible."""
    ways = all_placements(len(sizes), len(memory))
    fitting = [w for w in ways if all(n <= m for n, m in zip(needs(sizes, w), memory, strict=True))]
    blocks = [[max((own[b] for b in part), default=0) for own, part in zip(seconds, w, strict=True)] for w in fitting]
    return min(zip(map(max, blocks), fitting, strict=True), default=(0, None))[1]


@wrong("05.2", says="another one that fits is faster")
def smallest_difference(seconds, sizes, memory):
    """Make the slowest and the fastest device as equal as possible."""
    return best(seconds, sizes, memory, cost=lambda times: max(times) - min(times))


@wrong("05.2", says="another one that fits is faster")
def least_squares(seconds, sizes, memory):
    return best(seconds, sizes, memory, cost=lambda times: sum(time**2 for time in times))


@wrong("05.2", says="There are placements that fit, but you return None", never="exactly")
def within_the_time_of_device_0(seconds, sizes, memory):
    blocks = len(sizes)

    def within(limit):
        placement, begin = [], 0
        for times, room in zip(seconds, memory, strict=True):
            end = begin
            while end < blocks and sum(times[begin : end + 1]) <= limit and sum(sizes[begin : end + 1]) <= room:
                end += 1
            placement.append(list(range(begin, end)))
            begin = end
        return placement if begin == blocks else None

    low, high = 0, sum(seconds[0])
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if within(middle) else (middle + 1, high)
    return within(low)


@wrong("05.2", says="another one that fits is faster", never="every device has a block")
def leaves_only_the_last_ones_empty(seconds, sizes, memory):
    blocks, found = len(sizes), []
    for used in range(1, len(memory) + 1):
        for cuts in combinations(range(1, blocks), used - 1):
            parts = [list(range(*edges)) for edges in pairwise((0, *cuts, blocks))] + [[]] * (len(memory) - used)
            if all(need <= own for need, own in zip(needs(sizes, parts), memory, strict=True)):
                found.append((max(takes(seconds, parts)), parts))
    return min(found)[1] if found else None


@wrong("05.2", says="one device cannot hold its blocks", never="one device's limit")
def compares_the_memory_so_far(seconds, sizes, memory):
    """All blocks so far with the memory of all devices so far."""
    blocks, found = len(sizes), []
    for cuts in combinations_with_replacement(range(blocks + 1), len(memory) - 1):
        parts = [list(range(*edges)) for edges in pairwise((0, *cuts, blocks))]
        if all(need <= own for need, own in zip(accumulate(needs(sizes, parts)), accumulate(memory), strict=True)):
            found.append((max(takes(seconds, parts)), parts))
    return min(found)[1] if found else None


@right("05.2")
def by_recursion(seconds, sizes, memory):
    blocks, devices = len(sizes), len(memory)

    @cache
    def of_the_rest(start, device):
        """(pace, parts) of the blocks from `start` on, for the devices from `device` on."""
        if device == devices:
            return (0, ()) if start == blocks else None
        found = []
        for stop in range(start, blocks + 1):
            if sum(sizes[start:stop]) <= memory[device]:
                rest = of_the_rest(stop, device + 1)
                if rest:
                    pace = max(rest[0], sum(seconds[device][start:stop]))
                    found.append((pace, (tuple(range(start, stop)), *rest[1])))
        return min(found, default=None)

    answer = of_the_rest(0, 0)
    return answer and answer[1]


@right("05.2")
def by_the_owner_of_each_block(seconds, sizes, memory):
    blocks, devices = len(sizes), len(memory)
    found = []
    for owners in (
        product(range(devices), repeat=blocks) if blocks < 6 else combinations_with_replacement(range(devices), blocks)
    ):
        if list(owners) != sorted(owners):
            continue
        parts = [[block for block in range(blocks) if owners[block] == device] for device in range(devices)]
        if all(need <= own for need, own in zip(needs(sizes, parts), memory, strict=True)):
            found.append((max(takes(seconds, parts)), parts))
    return min(found)[1] if found else None


@right("05.2")
def by_asking_for_a_pace(seconds, sizes, memory):
    """Which pace can be kept, filling each device as far as it goes? The smallest of all sums that can."""

    def keeping(pace):
        ends = {0: []}
        for device in range(len(memory)):
            longer = {}
            for start, parts in ends.items():
                for stop in range(start, len(sizes) + 1):
                    part = range(start, stop)
                    if sum(sizes[start:stop]) <= memory[device] and sum(seconds[device][start:stop]) <= pace:
                        longer.setdefault(stop, [*parts, part])
            ends = longer
        return ends.get(len(sizes))

    stretches = combinations(range(len(sizes) + 1), 2)
    paces = {sum(own[start:stop]) for start, stop in list(stretches) for own in seconds}
    return next(filter(None, map(keeping, sorted(paces))), None)


# --- 05.3 Cut inside the cell ---


def gathered(own):
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own.detach().contiguous())
    return parts


def own_units(whole):
    return whole.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()]


def summed(tensor):
    tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(tensor)
    return tensor


class Gather(torch.autograd.Function):
    """Every rank's part, put together, for the gates and for the outputs."""

    @staticmethod
    def forward(ctx, own):
        whole = torch.cat(gathered(own), dim=-1)
        return whole, whole.clone()

    @staticmethod
    def backward(ctx, from_gates, from_outputs):
        return own_units(summed(from_gates) + from_outputs)


class GatherAndKeep(Gather):
    @staticmethod
    def backward(ctx, from_gates, from_outputs):
        return own_units(from_gates + from_outputs)


class GatherAndSumAll(Gather):
    @staticmethod
    def backward(ctx, from_gates, from_outputs):
        return own_units(summed(from_gates + from_outputs))


class GatherAndAverage(Gather):
    @staticmethod
    def backward(ctx, from_gates, from_outputs):
        return own_units(summed(from_gates + from_outputs)) / dist.get_world_size()


class SumBack(torch.autograd.Function):
    """Nothing forward, the sum over ranks backward."""

    @staticmethod
    def forward(ctx, whole):
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx, gradient):
        return summed(gradient)


def layer(weight_ih, weight_hh, bias, inputs, gather=Gather.apply, used=SumBack.apply, order="ifgo"):
    """A right answer; most of those below do one of the last three things in another way."""
    c = inputs.new_zeros(inputs.shape[1], len(bias) // 4)
    h, outputs = inputs.new_zeros(inputs.shape[1], weight_hh.shape[1]), []
    for step in used(inputs):
        gates = dict(zip(order, (step @ weight_ih.T + h @ weight_hh.T + bias).chunk(4, dim=1), strict=True))
        c = gates["f"].sigmoid() * c + gates["i"].sigmoid() * gates["g"].tanh()
        h, output = gather(gates["o"].sigmoid() * c.tanh())
        outputs.append(output)
    return torch.stack(outputs), c


@wrong("05.3", says="the weights, it seems, instead of h")
def gathers_the_weights(weight_ih, weight_hh, bias, inputs):
    ranks = dist.get_world_size()

    def whole(own):
        parts = gathered(own)
        parts[dist.get_rank()] = own
        return torch.cat([part.chunk(4)[gate] for gate in range(4) for part in parts])

    lstm = nn.LSTM(weight_ih.shape[1], weight_hh.shape[1], dtype=torch.float64)
    names = dict(
        zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0"), map(whole, (weight_ih, weight_hh, bias)), strict=True)
    )
    names["bias_hh_l0"] = torch.zeros_like(names["bias_ih_l0"])
    outputs, (_, c) = torch.func.functional_call(lstm, names, (inputs,))
    return outputs, c[0].chunk(ranks, dim=1)[dist.get_rank()]


@wrong("05.3", says="the weights, it seems, instead of h")
def gathers_the_weights_in_one_message(weight_ih, weight_hh, bias, inputs):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = torch.cat([weight_ih, weight_hh, bias.unsqueeze(1)], dim=1)
    parts = [part.double() for part in gathered(own.float())]
    parts[rank] = own
    rows = torch.cat([part.chunk(4)[gate] for gate in range(4) for part in parts])
    w_ih, w_hh, b = rows.split([weight_ih.shape[1], weight_hh.shape[1], 1], dim=1)
    c = h = inputs.new_zeros(inputs.shape[1], weight_hh.shape[1])
    outputs = []
    for step in inputs:
        i, f, g, o = (step @ w_ih.T + h @ w_hh.T + b[:, 0]).chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs), c.chunk(ranks, dim=1)[rank]


@wrong("05.3", says="no gradient comes back")
def plain_all_gather(weight_ih, weight_hh, bias, inputs):
    def gather(own):
        whole = torch.cat(gathered(own), dim=1)
        return whole, whole

    return layer(weight_ih, weight_hh, bias, inputs, gather)


@wrong("05.3", says="You get this if you use only this rank's part")
def own_part_in_the_graph(weight_ih, weight_hh, bias, inputs):
    def gather(own):
        parts = gathered(own)
        parts[dist.get_rank()] = own
        whole = torch.cat(parts, dim=1)
        return whole, whole

    return layer(weight_ih, weight_hh, bias, inputs, gather)


@wrong("05.3", says="You get this if you use only this rank's part")
def never_sums_back(weight_ih, weight_hh, bias, inputs):
    return layer(weight_ih, weight_hh, bias, inputs, GatherAndKeep.apply)


@wrong("05.3", says="through the *outputs* is added up")
def sums_everything_back(weight_ih, weight_hh, bias, inputs):
    return layer(weight_ih, weight_hh, bias, inputs, GatherAndSumAll.apply)


@wrong("05.3", says="adds up all of it")
def with_torchs_own_all_gather(weight_ih, weight_hh, bias, inputs):
    from torch.distributed.nn.functional import all_gather

    def gather(own):
        whole = torch.cat(all_gather(own.contiguous()), dim=1)
        return whole, whole

    return layer(weight_ih, weight_hh, bias, inputs, gather)


@wrong("05.3", says="a mean, or, with `detach`, nothing")
def averages_back(weight_ih, weight_hh, bias, inputs):
    return layer(weight_ih, weight_hh, bias, inputs, GatherAndAverage.apply)


@wrong("05.3", says="every rank uses all inputs")
def keeps_the_inputs_gradient(weight_ih, weight_hh, bias, inputs):
    return layer(weight_ih, weight_hh, bias, inputs, used=lambda inputs: inputs)


@wrong("05.3", says="gather after *every* step")
def gathers_at_the_end(weight_ih, weight_hh, bias, inputs):
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def alone(own):
        whole = torch.cat([own if other == rank else torch.zeros_like(own) for other in range(ranks)], dim=1)
        return whole, own

    outputs, c = layer(weight_ih, weight_hh, bias, inputs, alone)
    return Gather.apply(outputs)[1], c


@wrong("05.3", says="PyTorch's rows are i, f, g, o")
def gates_of_another_library(weight_ih, weight_hh, bias, inputs):
    return layer(weight_ih, weight_hh, bias, inputs, order="ifog")


@wrong("05.3", says="You return all of c")
def gathers_c(weight_ih, weight_hh, bias, inputs):
    outputs, c = layer(weight_ih, weight_hh, bias, inputs)
    return outputs, torch.cat(gathered(c), dim=1)


@wrong("05.3", says="side by side")
def returns_its_own_units(weight_ih, weight_hh, bias, inputs):
    outputs, c = layer(weight_ih, weight_hh, bias, inputs)
    return own_units(outputs), c


@wrong("05.3", says="side by side")
def one_below_the_other(weight_ih, weight_hh, bias, inputs):
    outputs, c = layer(weight_ih, weight_hh, bias, inputs)
    return torch.cat(outputs.chunk(dist.get_world_size(), dim=2), dim=1), c


@wrong("05.3", says="a step needs one collective")
def gathers_c_at_every_step(weight_ih, weight_hh, bias, inputs):
    def gather(own):
        gathered(own)
        return Gather.apply(own)

    return layer(weight_ih, weight_hh, bias, inputs, gather)


@wrong("05.3", says="nothing of c", never="the weights, it seems")
def sends_c_along(weight_ih, weight_hh, bias, inputs):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    hidden, own = weight_hh.shape[1], weight_hh.shape[1] // ranks
    mine = slice(rank * own, (rank + 1) * own)

    class State(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h, c):
            whole = h.new_zeros(2, h.shape[0], hidden)
            whole[0, :, mine], whole[1, :, mine] = h, c
            dist.all_reduce(whole)
            return whole[0].clone(), whole[0].clone()

        @staticmethod
        def backward(ctx, for_gates, for_outputs):
            total = for_gates.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total)
            return (total + for_outputs)[:, mine], None

    class Shared(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            total = gradient.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total)
            return total

    sequences = inputs.shape[1]
    h, c, outputs = inputs.new_zeros(sequences, hidden), inputs.new_zeros(sequences, own), []
    for x in Shared.apply(inputs):
        i, f, g, o = (x @ weight_ih.T + h @ weight_hh.T + bias).chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h, output = State.apply(o.sigmoid() * c.tanh(), c.detach())
        outputs.append(output)
    return torch.stack(outputs), c


class GatherForOutputs(Gather):
    @staticmethod
    def backward(ctx, from_gates, from_outputs):
        return own_units(from_outputs)


@wrong("05.3", says="with `detach`, nothing")
def cuts_h_between_the_steps(weight_ih, weight_hh, bias, inputs):
    return layer(weight_ih, weight_hh, bias, inputs, GatherForOutputs.apply)


@right("05.3")
def as_in_the_lesson(weight_ih, weight_hh, bias, inputs):
    return layer(weight_ih, weight_hh, bias, inputs)


@right("05.3")
def with_a_hook_on_the_inputs(weight_ih, weight_hh, bias, inputs):
    """The output keeps the own part in the graph; torch's own all-gather is for the gates."""
    from torch.distributed.nn.functional import all_gather

    inputs.register_hook(summed)

    def gather(own):
        parts = list(all_gather(own.contiguous()))
        of_gates = torch.cat(parts, dim=1)
        parts = [part.detach() for part in parts]
        parts[dist.get_rank()] = own
        return of_gates, torch.cat(parts, dim=1)

    return layer(weight_ih, weight_hh, bias, inputs, gather, used=lambda inputs: inputs)


@right("05.3")
def with_an_all_reduce_forward(weight_ih, weight_hh, bias, inputs):
    """Zeros for the others' units, added up: the same numbers, in larger messages."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    class Together(torch.autograd.Function):
        @staticmethod
        def forward(ctx, own):
            ctx.set_materialize_grads(False)
            whole = summed(torch.cat([own if other == rank else 0 * own for other in range(ranks)], dim=1))
            return whole, whole.clone()

        @staticmethod
        def backward(ctx, from_gates, from_outputs):
            return own_units(from_outputs if from_gates is None else summed(from_gates) + from_outputs)

    return layer(weight_ih, weight_hh, bias, inputs, Together.apply)


@right("05.3")
def with_hooks_alone(weight_ih, weight_hh, bias, inputs):
    """The gates' h is a leaf-like copy whose gradient a hook adds up."""
    rank = dist.get_rank()
    inputs.register_hook(summed)

    def gather(own):
        parts = gathered(own)
        parts[rank] = own
        output = torch.cat(parts, dim=1)
        of_gates = torch.cat(parts, dim=1)
        of_gates.register_hook(summed)
        return of_gates, output

    return layer(weight_ih, weight_hh, bias, inputs, gather, used=lambda inputs: inputs)


@right("05.3")
def adds_up_the_inputs_step_by_step(weight_ih, weight_hh, bias, inputs):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    hidden, own = weight_hh.shape[1], weight_hh.shape[1] // ranks
    mine = slice(rank * own, (rank + 1) * own)

    class Whole(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h):
            pieces = [torch.empty_like(h) for _ in range(ranks)]
            dist.all_gather(pieces, h.contiguous())
            whole = torch.cat(pieces, dim=1)
            return whole, whole.clone()

        @staticmethod
        def backward(ctx, for_gates, for_outputs):
            total = for_gates.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total)
            return (total + for_outputs)[:, mine]

    class SharedStep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            total = gradient.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total)
            return total

    sequences = inputs.shape[1]
    h, c, outputs = inputs.new_zeros(sequences, hidden), inputs.new_zeros(sequences, own), []
    for x in inputs:
        i, f, g, o = (SharedStep.apply(x) @ weight_ih.T + h @ weight_hh.T + bias).chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h, output = Whole.apply(o.sigmoid() * c.tanh())
        outputs.append(output)
    return torch.stack(outputs), c


@right("05.3")
def by_hand_in_both_directions(weight_ih, weight_hh, bias, inputs):
    # The whole layer is one autograd function, with the backward pass through time by hand. Forward, h is put together
    # by a sum of vectors that are zero outside the rank's own units: sequences x hidden numbers, within the budget.
    ranks = dist.get_world_size()
    hidden = weight_hh.shape[1]
    own = hidden // ranks
    first = dist.get_rank() * own

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight_ih, weight_hh, bias, inputs):
            _steps, sequences, _ = inputs.shape
            states, cells, gates = [inputs.new_zeros(sequences, hidden)], [inputs.new_zeros(sequences, own)], []
            for x in inputs:
                sums = x @ weight_ih.T + states[-1] @ weight_hh.T + bias
                i, f, g, o = sums.view(sequences, 4, own).unbind(1)
                i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
                cells.append(f * cells[-1] + i * g)
                h = inputs.new_zeros(sequences, hidden)
                h[:, first : first + own] = o * cells[-1].tanh()
                dist.all_reduce(h)
                states.append(h)
                gates.append(torch.stack([i, f, g, o]))
            stacked = torch.stack(states), torch.stack(cells), torch.stack(gates)
            ctx.save_for_backward(weight_ih, weight_hh, inputs, *stacked)
            return torch.stack(states[1:]), cells[-1].clone()

        @staticmethod
        def backward(ctx, grad_outputs, grad_c):
            weight_ih, weight_hh, inputs, states, cells, gates = ctx.saved_tensors
            grad_h, of_sums = torch.zeros_like(cells[0]), []
            for step in range(len(inputs) - 1, -1, -1):
                i, f, g, o = gates[step]
                squashed = cells[step + 1].tanh()
                grad_h = grad_h + grad_outputs[step, :, first : first + own]
                grad_c = grad_c + grad_h * o * (1 - squashed * squashed)
                parts = (
                    grad_c * g * i * (1 - i),
                    grad_c * cells[step] * f * (1 - f),
                    grad_c * i * (1 - g * g),
                    grad_h * squashed * o * (1 - o),
                )
                of_sums.append(torch.cat(parts, dim=1))
                grad_c = grad_c * f
                if step:
                    fed_back = of_sums[-1] @ weight_hh
                    dist.all_reduce(fed_back)
                    grad_h = fed_back[:, first : first + own]
            of_sums = torch.stack(of_sums[::-1])
            grad_inputs = of_sums @ weight_ih
            dist.all_reduce(grad_inputs)
            return (
                torch.einsum("tsg,tsw->gw", of_sums, inputs),
                torch.einsum("tsg,tsh->gh", of_sums, states[:-1]),
                of_sums.sum(dim=(0, 1)),
                grad_inputs,
            )

    return Layer.apply(weight_ih, weight_hh, bias, inputs)


@wrong("05.1", says="make it contiguous before you send it")
def sends_a_view(stage, inputs, loss, shape):
    rank = dist.get_rank()
    if inputs is None:
        inputs = torch.empty(shape, dtype=torch.float64)
        dist.recv(inputs, rank - 1)
        inputs.requires_grad_()
    outputs = stage(inputs)
    if loss is None:
        dist.send(outputs.detach(), rank + 1)
        gradient = torch.empty(shape, dtype=torch.float64)
        dist.recv(gradient, rank + 1)
        outputs.backward(gradient)
    else:
        loss(outputs).backward()
    if rank > 0:
        dist.send(inputs.grad.contiguous(), rank - 1)


@wrong("05.1", says="to autograd it is a constant")
def forgets_the_leaf(stage, inputs, loss, shape):
    rank = dist.get_rank()
    if inputs is None:
        inputs = torch.empty(shape, dtype=torch.float64)
        dist.recv(inputs, rank - 1)
    outputs = stage(inputs)
    if loss is None:
        dist.send(outputs.detach().contiguous(), rank + 1)
        gradient = torch.empty(shape, dtype=torch.float64)
        dist.recv(gradient, rank + 1)
        outputs.backward(gradient)
    else:
        loss(outputs).backward()
    if rank > 0:
        dist.send(inputs.grad.contiguous(), rank - 1)


@wrong("05.1", says="The `.grad` of what was received is None")
def sends_no_gradient(stage, inputs, loss, shape):
    rank = dist.get_rank()
    received = inputs if rank == 0 else received_from(rank - 1, shape)
    outputs = stage(received)
    if loss is None:
        dist.send(outputs.detach().contiguous(), rank + 1)
        outputs.backward(received_from(rank + 1, shape))
    else:
        loss(outputs).backward()
    if rank:
        dist.send(received.grad, rank - 1)


@wrong("05.1", says="the tensor that holds the inputs")
def receives_into_the_inputs(stage, inputs, loss, shape):
    rank, buffer = dist.get_rank(), torch.empty(shape, dtype=torch.float64)
    if rank:
        dist.recv(buffer, rank - 1)
        inputs = buffer.requires_grad_()
    outputs = stage(inputs)
    if loss is None:
        dist.send(outputs.detach().contiguous(), rank + 1)
        dist.recv(buffer.data, rank + 1)
        outputs.backward(buffer.detach())
    else:
        loss(outputs).backward()
    if rank:
        dist.send(inputs.grad.contiguous(), rank - 1)


@wrong("05.1", says="not all messages are float64")
def sends_gradients_in_float32(stage, inputs, loss, shape):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank:
        inputs = torch.empty(shape, dtype=torch.float64)
        dist.recv(inputs, rank - 1)
        inputs.requires_grad_()
    outputs = stage(inputs)
    if rank < last:
        dist.send(outputs.detach().contiguous(), rank + 1)
        gradient = torch.empty(shape)
        dist.recv(gradient, rank + 1)
        outputs.backward(gradient.double())
    else:
        loss(outputs).backward()
    if rank:
        dist.send(inputs.grad.float().contiguous(), rank - 1)
