"""Answers to the exercises of lesson 04, wrong and right."""

import torch
import torch.distributed as dist
from torch import nn

from tests.checks.bank import right, wrong

# --- 04.1 In pieces, with a tail ---


def updates_of(micro_batches, k):
    return [micro_batches[start : start + k] for start in range(0, len(micro_batches), k)]


def accumulated(model, optimizer, updates, share):
    """One update after the other; `share` makes the loss of a piece from its squared errors."""
    losses = []
    for pieces in updates:
        optimizer.zero_grad()
        total = 0.0
        for inputs, targets in pieces:
            loss = share((model(inputs) - targets).square(), pieces)
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


def examples_of(pieces):
    return sum(len(inputs) for inputs, _ in pieces)


@wrong("04.1", says="There is one step too many")
def steps_for_a_tail_that_is_not_there(model, optimizer, micro_batches, k):
    updates = updates_of(micro_batches, k)
    losses = accumulated(model, optimizer, updates, lambda errors, pieces: errors.sum() / examples_of(pieces))
    if len(micro_batches) % k == 0:
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()
    return losses


@wrong("04.1", says="You join micro-batches")
def one_large_batch(model, optimizer, micro_batches, k):
    losses = []
    for pieces in updates_of(micro_batches, k):
        inputs, targets = (torch.cat(each) for each in zip(*pieces, strict=True))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@wrong("04.1", says="A backward pass frees")
def one_backward_for_all(model, optimizer, micro_batches, k):
    losses = []
    for pieces in updates_of(micro_batches, k):
        optimizer.zero_grad()
        loss = sum((model(inputs) - targets).square().sum() for inputs, targets in pieces) / examples_of(pieces)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@wrong("04.1", says="A backward pass frees")
def backwards_after_all_forwards(model, optimizer, micro_batches, k):
    losses = []
    for pieces in updates_of(micro_batches, k):
        optimizer.zero_grad()
        shares = [(model(x) - y).square().sum() / examples_of(pieces) for x, y in pieces]
        for share in shares:
            share.backward()
        optimizer.step()
        losses.append(float(sum(shares)))
    return losses


@wrong("04.1", says="in smaller pieces than they come in")
def one_example_at_a_time(model, optimizer, micro_batches, k):
    losses = []
    for pieces in updates_of(micro_batches, k):
        optimizer.zero_grad()
        pairs = [pair for inputs, targets in pieces for pair in zip(inputs, targets, strict=True)]
        total = 0.0
        for inputs, targets in pairs:
            loss = (model(inputs.unsqueeze(0)) - targets).square().sum() / len(pairs)
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


@wrong("04.1", says="update after every micro-batch")
def a_step_for_each(model, optimizer, micro_batches, k):
    return accumulated(model, optimizer, [[piece] for piece in micro_batches], lambda e, pieces: e.mean())


@wrong("04.1", says="mean of means")
def mean_over_the_pieces(model, optimizer, micro_batches, k):
    return accumulated(model, optimizer, updates_of(micro_batches, k), lambda e, pieces: e.mean() / len(pieces))


@wrong("04.1", says="mean of means")
def mean_over_k(model, optimizer, micro_batches, k):
    return accumulated(model, optimizer, updates_of(micro_batches, k), lambda e, pieces: e.mean() / k)


@wrong("04.1", says="means of k micro-batches")
def adds_up_means(model, optimizer, micro_batches, k):
    return accumulated(model, optimizer, updates_of(micro_batches, k), lambda e, pieces: e.mean())


@wrong("04.1", says="never divide")
def adds_up_sums(model, optimizer, micro_batches, k):
    return accumulated(model, optimizer, updates_of(micro_batches, k), lambda e, pieces: e.sum())


@wrong("04.1", says="the size of *one* of them")
def k_times_the_first(model, optimizer, micro_batches, k):
    share = lambda e, pieces: e.sum() / (k * len(pieces[0][0]))  # noqa: E731
    return accumulated(model, optimizer, updates_of(micro_batches, k), share)


@wrong("04.1", says="the size of *one* of them")
def pieces_times_the_last(model, optimizer, micro_batches, k):
    share = lambda e, pieces: e.sum() / (len(pieces) * len(pieces[-1][0]))  # noqa: E731
    return accumulated(model, optimizer, updates_of(micro_batches, k), share)


@wrong("04.1", says="no update is made from them")
def counts_to_k(model, optimizer, micro_batches, k):
    full = [pieces for pieces in updates_of(micro_batches, k) if len(pieces) == k]
    return accumulated(model, optimizer, full, lambda e, pieces: e.sum() / examples_of(pieces))


@wrong("04.1", says="belongs to no other")
def the_tail_joins_the_last_update(model, optimizer, micro_batches, k):
    updates = updates_of(micro_batches, k)
    if len(updates) > 1 and len(updates[-1]) < k:
        updates[-2:] = [updates[-2] + updates[-1]]
    return accumulated(model, optimizer, updates, lambda e, pieces: e.sum() / examples_of(pieces))


@wrong("04.1", says="only the last one of an update")
def zeroes_for_each(model, optimizer, micro_batches, k):
    losses = []
    for pieces in updates_of(micro_batches, k):
        total = 0.0
        for inputs, targets in pieces:
            model.zero_grad()
            loss = (model(inputs) - targets).square().sum() / examples_of(pieces)
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


@wrong("04.1", says="still has the first one's gradients")
def forgets_to_zero(model, optimizer, micro_batches, k):
    losses = []
    for pieces in updates_of(micro_batches, k):
        total = 0.0
        for inputs, targets in pieces:
            loss = (model(inputs) - targets).square().sum() / examples_of(pieces)
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


@wrong("04.1", says="The weights are right here, but the losses")
def returns_a_loss_for_each_piece(model, optimizer, micro_batches, k):
    losses = []

    def share(errors, pieces):
        losses.append((errors.sum() / examples_of(pieces)).item())
        return errors.sum() / examples_of(pieces)

    accumulated(model, optimizer, updates_of(micro_batches, k), share)
    return losses


@wrong("04.1", says="the tail's included")
def forgets_the_loss_of_the_tail(model, optimizer, micro_batches, k):
    losses = accumulated(model, optimizer, updates_of(micro_batches, k), lambda e, p: e.sum() / examples_of(p))
    return losses[: len(micro_batches) // k]


@wrong("04.1", says="The weights are right here, but the losses")
def returns_the_last_piece(model, optimizer, micro_batches, k):
    losses = []
    for pieces in updates_of(micro_batches, k):
        optimizer.zero_grad()
        for inputs, targets in pieces:
            loss = (model(inputs) - targets).square().sum() / examples_of(pieces)
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@wrong("04.1", says="zeroed before it")
def never_steps(model, optimizer, micro_batches, k):
    losses = []
    for pieces in updates_of(micro_batches, k):
        total = 0.0
        for inputs, targets in pieces:
            loss = (model(inputs) - targets).square().sum() / examples_of(pieces)
            loss.backward()
            total += loss.item()
        optimizer.zero_grad()
        optimizer.step()
        losses.append(total)
    return losses


@wrong("04.1", says="same number of examples in every update")
def counts_the_first_update(model, optimizer, micro_batches, k):
    count = sum(len(inputs) for inputs, _ in micro_batches[:k])
    losses = []
    for begin in range(0, len(micro_batches), k):
        optimizer.zero_grad()
        total = 0.0
        for inputs, targets in micro_batches[begin : begin + k]:
            loss = (model(inputs) - targets).square().sum() / count
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


@wrong("04.1", says="same number of examples in every update")
def counts_all_examples(model, optimizer, micro_batches, k):
    count = examples_of(micro_batches)
    return accumulated(model, optimizer, updates_of(micro_batches, k), lambda errors, _: errors.sum() / count)


@wrong("04.1", says="You make k updates", never="after every micro-batch")
def takes_k_for_the_number_of_updates(model, optimizer, micro_batches, k):
    size = -(-len(micro_batches) // k)
    return means_with_weights(model, optimizer, micro_batches, size)


@right("04.1")
def rescales_at_the_end(model, optimizer, micro_batches, k):
    """Sums first; the gradients are divided when the count is known."""
    losses, total, count = [], 0.0, 0
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        loss = nn.functional.mse_loss(model(inputs), targets, reduction="sum")
        loss.backward()
        total, count = total + loss.item(), count + len(inputs)
        if number % k == 0 or number == len(micro_batches):
            for parameter in model.parameters():
                parameter.grad /= count
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            losses.append(total / count)
            total, count = 0.0, 0
    return losses


@right("04.1")
def with_autograd_grad(model, optimizer, micro_batches, k):
    losses, parameters = [], list(model.parameters())
    for pieces in updates_of(micro_batches, k):
        count = examples_of(pieces)
        sums, total = [torch.zeros_like(parameter) for parameter in parameters], torch.zeros(())
        for inputs, targets in pieces:
            loss = ((model(inputs) - targets) ** 2).sum()
            for whole, gradient in zip(sums, torch.autograd.grad(loss, parameters), strict=True):
                whole += gradient
            total = total + loss.detach()
        for parameter, whole in zip(parameters, sums, strict=True):
            parameter.grad = whole / count
        optimizer.step()
        losses.append(total / count)
    return losses


@right("04.1")
def means_with_weights(model, optimizer, micro_batches, k):
    def share(errors, pieces):
        return errors.mean() * (len(errors) / examples_of(pieces))

    return tuple(accumulated(model, optimizer, updates_of(micro_batches, k), share))


@right("04.1")
def keeps_the_loss_as_a_tensor(model, optimizer, micro_batches, k):
    losses = []
    for pieces in updates_of(micro_batches, k):
        total = 0
        optimizer.zero_grad()
        for inputs, targets in pieces:
            share = torch.pow(model(inputs) - targets, 2).sum().div(examples_of(pieces))
            share.backward()
            total += share  # keeps a chain of freed graphs
        optimizer.step()
        losses.append(total)
    return losses


@right("04.1")
def goes_back_from_the_errors(model, optimizer, micro_batches, k):
    # No loss is ever a node of the graph: the backward pass begins at the errors, with their gradient.
    def updates(rest):
        while rest:
            yield rest[:k]
            rest = rest[k:]

    def make(group):
        optimizer.zero_grad()
        count, squares = sum(targets.shape[0] for _, targets in group), 0.0
        for inputs, targets in group:
            errors = model(inputs) - targets
            seen = errors.detach()
            errors.backward(seen * (2 / count))
            squares += float((seen * seen).sum())
        optimizer.step()
        return squares / count

    return [make(group) for group in updates(list(micro_batches))]


# --- 04.2 Clip in the right place ---


def backward_of_all(model, micro_batches, count):
    for inputs, targets in micro_batches:
        ((model(inputs) - targets).square().sum() / count).backward()


def sum_over_ranks(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def norm_of(model):
    return torch.stack([parameter.grad.square().sum() for parameter in model.parameters()]).sum().sqrt()


@wrong("04.2", says="after every micro-batch")
def clips_after_each_backward(model, optimizer, micro_batches, count, limit):
    for inputs, targets in micro_batches:
        ((model(inputs) - targets).square().sum() / count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), limit)
    sum_over_ranks(model)
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    return norm


@wrong("04.2", says="Each rank clips its own gradient")
def clips_then_sums(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    nn.utils.clip_grad_norm_(model.parameters(), limit)
    sum_over_ranks(model)
    norm = norm_of(model)
    optimizer.step()
    return norm


@wrong("04.2", says="Each rank clips its own gradient")
def clips_then_sums_and_returns_its_own_norm(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    sum_over_ranks(model)
    optimizer.step()
    return norm


@wrong("04.2", says="Each rank clips its own gradient")
def clips_before_and_after(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    nn.utils.clip_grad_norm_(model.parameters(), limit)
    sum_over_ranks(model)
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    return norm


@wrong("04.2", says="norms of the parts")
def norm_from_the_ranks_norms(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    squares = norm_of(model).square()
    dist.all_reduce(squares)
    norm = squares.sqrt()
    sum_over_ranks(model)
    for parameter in model.parameters():
        parameter.grad *= min(1.0, limit / norm.item())
    optimizer.step()
    return norm


@wrong("04.2", says="number of ranks")
def mean_over_ranks(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    for parameter in model.parameters():
        parameter.grad.div_(dist.get_world_size())
        dist.all_reduce(parameter.grad)
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    return norm


@wrong("04.2", says="norm is", never="The weights are right")
def adds_the_norms_of_the_parameters(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    sum_over_ranks(model)
    norm = sum(parameter.grad.norm() for parameter in model.parameters())
    for parameter in model.parameters():
        parameter.grad *= min(1.0, limit / norm.item())
    optimizer.step()
    return norm


@wrong("04.2", says="The ranks step with different gradients")
def sends_the_weight_only(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    dist.all_reduce(model.weight.grad)
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    return norm


@wrong("04.2", says="Every rank updates with its own gradient")
def sends_nothing(model, optimizer, micro_batches, count, limit):
    own = sum(len(inputs) for inputs, _ in micro_batches)
    backward_of_all(model, micro_batches, own)
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    return norm


@wrong("04.2", says="is scaled up to it")
def scales_to_the_limit(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    sum_over_ranks(model)
    norm = norm_of(model)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.mul_(limit / norm)
    optimizer.step()
    return norm


@wrong("04.2", says="one factor shortens them all")
def clips_parameter_by_parameter(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    sum_over_ranks(model)
    norm = norm_of(model)
    for parameter in model.parameters():
        parameter.grad *= min(1.0, limit / parameter.grad.norm().item())
    optimizer.step()
    return norm


@wrong("04.2", says="with the gradient as it was")
def steps_before_clipping(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    sum_over_ranks(model)
    optimizer.step()
    return nn.utils.clip_grad_norm_(model.parameters(), limit)


@wrong("04.2", says="with the gradient as it was")
def never_clips(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    sum_over_ranks(model)
    optimizer.step()
    return norm_of(model)


@wrong("04.2", says="number by number")
def clips_values(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    sum_over_ranks(model)
    norm = norm_of(model)
    nn.utils.clip_grad_value_(model.parameters(), limit)
    optimizer.step()
    return norm


@wrong("04.2", says="*before* clipping")
def norm_after_clipping(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    sum_over_ranks(model)
    nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    return norm_of(model)


@wrong("04.2", says="This is a different norm")
def largest_number_as_norm(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    sum_over_ranks(model)
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit, norm_type=float("inf"))
    optimizer.step()
    return norm


@wrong("04.2", says="This is a different norm")
def takes_no_root(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    sum_over_ranks(model)
    norm = sum(parameter.grad.square().sum() for parameter in model.parameters())
    for parameter in model.parameters():
        parameter.grad *= min(1.0, limit / norm.item())
    optimizer.step()
    return norm


@wrong("04.2", says="the weight of an example")
def mean_of_every_piece(model, optimizer, micro_batches, count, limit):
    for inputs, targets in micro_batches:
        (nn.functional.mse_loss(model(inputs), targets) / len(micro_batches) / dist.get_world_size()).backward()
    sum_over_ranks(model)
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    return norm


@wrong("04.2", says="or of every rank")
def mean_of_every_rank(model, optimizer, micro_batches, count, limit):
    mine = sum(len(inputs) for inputs, _ in micro_batches)
    for inputs, targets in micro_batches:
        ((model(inputs) - targets).square().sum() / mine).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
    for gradient in gradients:
        gradient *= min(1.0, limit / norm)
    optimizer.step()
    return norm


@right("04.2")
def in_one_flat_message(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    flat = nn.utils.parameters_to_vector(parameter.grad for parameter in model.parameters())
    dist.all_reduce(flat)
    norm = torch.linalg.vector_norm(flat)
    flat *= torch.clamp(limit / norm, max=1.0)
    nn.utils.vector_to_parameters(flat, [parameter.grad for parameter in model.parameters()])
    optimizer.step()
    return norm


@right("04.2")
def with_torch_functions(model, optimizer, micro_batches, count, limit):
    backward_of_all(model, micro_batches, count)
    sum_over_ranks(model)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    nn.utils.clip_grads_with_norm_(model.parameters(), limit, norm)
    optimizer.step()
    return norm.item()


@right("04.2")
def gathered_and_in_float32(model, optimizer, micro_batches, count, limit):
    gradients = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for inputs, targets in micro_batches:
        loss = nn.functional.mse_loss(model(inputs), targets, reduction="sum")
        for whole, part in zip(gradients, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            whole += part
    for parameter, own in zip(model.parameters(), gradients, strict=True):
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        parameter.grad = sum(parts) / count
    norm = sum(float(parameter.grad.float().norm()) ** 2 for parameter in model.parameters()) ** 0.5
    if norm > limit:
        for parameter in model.parameters():
            parameter.grad *= limit / norm
    optimizer.step()
    return norm


@right("04.2")
def on_rank_0_and_broadcast(model, optimizer, micro_batches, count, limit):
    # Rank 0 adds up, measures and shortens; the others get the gradient and its norm in one message.
    parameters, mine = [each for each in model.parameters() if each.requires_grad], None
    for inputs, targets in micro_batches:
        loss = (model(inputs) - targets).pow(2).sum() / count
        pieces = torch.autograd.grad(loss, parameters, allow_unused=True)
        if mine is None:
            parameters, pieces = zip(
                *[(each, piece) for each, piece in zip(parameters, pieces, strict=True) if piece is not None],
                strict=True,
            )
        flat = torch.cat([piece.reshape(-1) for piece in pieces])
        mine = flat if mine is None else mine + flat
    dist.reduce(mine, 0)
    message = torch.cat([mine, mine.new_zeros(1)])
    if dist.get_rank() == 0:
        norm = torch.linalg.vector_norm(mine)
        shortened = mine * (limit / norm) if norm > limit else mine
        message = torch.cat([shortened, norm.reshape(1)])
    dist.broadcast(message, 0)
    for each, piece in zip(parameters, message[:-1].split([each.numel() for each in parameters]), strict=True):
        each.grad = piece.reshape(each.shape).to(each.dtype, copy=True)
    optimizer.step()
    return message[-1].item()


# --- 04.3 Hooks that are right under accumulation ---


def after_accumulation(model, k, kth, others=lambda parameter: None):
    def hook_with_a_count():
        passes = 0

        def hook(parameter):
            nonlocal passes
            passes += 1
            (others if passes % k else kth)(parameter)

        return hook

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook_with_a_count())


def average(tensor):
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


@wrong("04.3", says="never averaged")
def averages_the_last_pass(model, k):
    for parameter in model.parameters():
        state = {"n": 0}

        def hook(gradient, state=state):
            state["n"] = (state["n"] + 1) % k
            if state["n"] == 0:
                total = gradient / dist.get_world_size()
                dist.all_reduce(total)
                return total

        parameter.register_hook(hook)


@wrong("04.3", says="Every backward pass sends")
def sends_in_every_pass(model, k):
    after_accumulation(model, k, lambda p: average(p.grad), lambda p: average(p.grad))


@wrong("04.3", says="nothing is sent")
def sends_copies_in_every_pass(model, k):
    after_accumulation(model, k, lambda p: average(p.grad), lambda p: dist.all_reduce(p.grad.clone()))


@wrong("04.3", says="sum over the ranks")
def sums(model, k):
    after_accumulation(model, k, lambda p: dist.all_reduce(p.grad))


@wrong("04.3", says="number of passes")
def divides_by_k_too(model, k):
    def kth(parameter):
        average(parameter.grad)
        parameter.grad /= k

    after_accumulation(model, k, kth)


@wrong("04.3", says="Every rank keeps its own sum")
def averages_the_weights(model, k):
    after_accumulation(model, k, lambda p: average(p.data))


@wrong("04.3", says="once for *each* parameter")
def one_count_for_all(model, k):
    calls = 0

    def hook(parameter):
        nonlocal calls
        calls += 1
        if calls % k == 0:
            average(parameter.grad)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)


@wrong("04.3", says="The first update is right")
def counts_on(model, k):
    for parameter in model.parameters():
        left = [k]

        def hook(parameter, left=left):
            left[0] -= 1
            if left[0] == 0:
                average(parameter.grad)

        parameter.register_post_accumulate_grad_hook(hook)


@wrong("04.3", says="*first* pass")
def sends_in_the_first_pass(model, k):
    for parameter in model.parameters():
        passes = [0]

        def hook(parameter, passes=passes):
            if passes[0] % k == 0:
                average(parameter.grad)
            passes[0] += 1

        parameter.register_post_accumulate_grad_hook(hook)


@wrong("04.3", says="Some gradients are still the rank's own sums")
def only_the_last_parameter(model, k):
    passes = [0]

    def hook(_):
        passes[0] += 1
        if passes[0] % k == 0:
            average(parameter.grad)

    *_, parameter = model.parameters()
    parameter.register_post_accumulate_grad_hook(hook)


@wrong("04.3", says="Every rank keeps its own sum")
def replaces_by_a_copy(model, k):
    def kth(parameter):
        average(parameter.grad.clone())

    after_accumulation(model, k, kth)


@wrong("04.3", says="Nothing is sent in any backward pass")
def forgets_the_hooks(model, k):
    for parameter in model.parameters():
        if parameter.grad is not None:
            average(parameter.grad)


@wrong("04.3", says="such as all that are called `weight`")
def counts_by_short_names(model, k):
    passes = {}

    def averager(name):
        def average(parameter):
            passes[name] = passes.get(name, 0) + 1
            if passes[name] % k == 0:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

        return average

    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            parameter.register_post_accumulate_grad_hook(averager(name))


@wrong("04.3", says="more is sent in a k-th pass than each gradient once")
def every_hook_sends_everything(model, k):
    parameters = list(model.parameters())
    passes = dict.fromkeys(parameters, 0)

    def average(parameter):
        passes[parameter] += 1
        if passes[parameter] % k == 0:
            for each in parameters:
                if each.grad is not None:
                    dist.all_reduce(each.grad)
                    each.grad /= dist.get_world_size()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(average)


@wrong("04.3", says="sees the loop's *last* values", never="You count calls of the hook")
def binds_its_name_and_parameter_late(model, k):
    passes = {}
    for name, parameter in model.named_parameters():
        passes[name] = 0

        def hook(_):
            passes[name] += 1  # noqa: B023
            if passes[name] % k == 0:  # noqa: B023
                average(parameter.grad)  # noqa: B023

        parameter.register_post_accumulate_grad_hook(hook)


@right("04.3")
def in_one_message(model, k):
    """All gradients in one message, from the hook that comes last in a pass."""
    parameters, calls = list(model.parameters()), [0]

    def hook(_):
        calls[0] += 1
        if calls[0] % (k * len(parameters)) == 0:
            flat = nn.utils.parameters_to_vector([parameter.grad for parameter in parameters])
            average(flat)
            nn.utils.vector_to_parameters(flat, [parameter.grad for parameter in parameters])

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)


@right("04.3")
def with_a_class(model, k):
    class Averages:
        def __init__(self):
            self.passes = 0

        def __call__(self, parameter):
            self.passes = (self.passes + 1) % k
            if not self.passes:
                parts = [torch.empty_like(parameter.grad) for _ in range(dist.get_world_size())]
                dist.all_gather(parts, parameter.grad)
                parameter.grad = torch.stack(parts).mean(dim=0)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(Averages())


@right("04.3")
def with_tensor_hooks_that_add(model, k):
    """A tensor hook that knows what is in `.grad` already."""
    for parameter in model.parameters():
        passes = [0]

        def hook(gradient, parameter=parameter, passes=passes):
            passes[0] += 1
            if passes[0] % k:
                return None
            before = torch.zeros_like(gradient) if parameter.grad is None else parameter.grad
            whole = before + gradient
            average(whole)
            return whole - before

        parameter.register_hook(hook)


@right("04.3")
def divides_first_and_waits(model, k):
    def kth(parameter):
        parameter.grad.div_(dist.get_world_size())
        dist.all_reduce(parameter.grad, async_op=True).wait()

    after_accumulation(model, k, kth)
