"""Answers to the exercises of lesson 03, wrong and right."""

import random
from bisect import bisect_left

import torch
import torch.distributed as dist

from tests.checks.bank import right, wrong

# --- 03.1 The last valid step ---


@wrong("03.1", says="last column")
def the_last_output(outputs, lengths):
    return outputs[-1] * (lengths > 0).unsqueeze(1)


@wrong("03.1", says="Steps count from 0")
def the_step_after_the_last(outputs, lengths):
    steps = lengths.clamp(max=len(outputs) - 1)
    return outputs[steps, torch.arange(len(lengths))]


@wrong("03.1", says="a length of 0")
def wraps_with_gather(outputs, lengths):
    steps = (lengths - 1) % len(outputs)
    index = steps.view(1, -1, 1).expand(1, -1, outputs.shape[2])
    return outputs.gather(0, index)[0]


@wrong("03.1", says="clamped to 0")
def first_step_of_an_empty_one(outputs, lengths):
    return outputs[(lengths - 1).clamp(min=0), torch.arange(len(lengths))]


@wrong("03.1", says="order of the batch")
def sorted_by_length(outputs, lengths):
    order = sorted(range(len(lengths)), key=lambda i: int(lengths[i]))
    zero = outputs.new_zeros(outputs.shape[2])
    return torch.stack([outputs[lengths[i] - 1, i] if lengths[i] else zero for i in order])


@wrong("03.1", says="taken out of the graph")
def rebuilt_from_numbers(outputs, lengths):
    values = outputs.tolist()
    width = outputs.shape[2]
    return torch.tensor([values[n - 1][i] if n else [0.0] * width for i, n in enumerate(lengths.tolist())]).double()


@wrong("03.1", says="taken out of the graph")
def filled_in_without_grad(outputs, lengths):
    states = torch.zeros(outputs.shape[1:], dtype=outputs.dtype)
    for i, length in enumerate(lengths):
        if length > 0:
            states[i] = outputs.data[length - 1, i]
    return states


@wrong("03.1", says="mean over the steps of each sequence")
def mean_of_the_valid_steps(outputs, lengths):
    valid = torch.arange(len(outputs)).unsqueeze(1) < lengths
    return (outputs * valid.unsqueeze(2)).sum(0) / lengths.clamp(min=1).unsqueeze(1)


@wrong("03.1", says="first step")
def the_first_step(outputs, lengths):
    return outputs[0] * (lengths > 0).unsqueeze(1)


@wrong("03.1", says="a row for every sequence")
def leaves_empty_ones_out(outputs, lengths):
    there = lengths > 0
    return outputs[lengths[there] - 1, torch.arange(len(lengths))[there]]


@wrong("03.1", says="a sequence without steps has a gradient")
def writes_zeros_into_the_outputs(outputs, lengths):
    # the values are right, and what belongs to the caller is changed behind autograd's back
    outputs.data[-1, lengths == 0] = 0.0
    return outputs[lengths - 1, torch.arange(len(lengths))]


@wrong("03.1", says="You change `lengths`")
def counts_down_in_place(outputs, lengths):
    lengths -= 1
    states = outputs[lengths, torch.arange(len(lengths))]
    return states.masked_fill((lengths < 0).unsqueeze(1), 0)


@wrong("03.1", says="You treat the first dimension as the sequences")
def batch_first(outputs, lengths):
    return outputs[torch.arange(len(lengths)), lengths - 1]


@wrong("03.1", says="only the digits of float32")
def rows_in_the_default_dtype(outputs, lengths):
    states = torch.zeros(outputs.shape[1:])
    for sequence, length in enumerate(lengths.tolist()):
        if length:
            states[sequence] = outputs[length - 1, sequence]
    return states


@right("03.1")
def with_a_loop(outputs, lengths):
    zero = torch.zeros(outputs.shape[2], dtype=outputs.dtype)
    return torch.stack([outputs[n - 1, i] if n else zero for i, n in enumerate(lengths.tolist())])


@right("03.1")
def with_one_hot(outputs, lengths):
    last = torch.arange(1, len(outputs) + 1).unsqueeze(1) == lengths
    return torch.einsum("tsh,ts->sh", outputs, last.to(outputs.dtype))


@right("03.1")
def with_a_zero_step_in_front(outputs, lengths):
    padded = torch.cat([torch.zeros_like(outputs[:1]), outputs])
    return padded[lengths, torch.arange(len(lengths))]


@right("03.1")
def with_gather_and_where(outputs, lengths):
    index = (lengths - 1).clamp(min=0).view(1, -1, 1).expand(1, -1, outputs.size(-1))
    return outputs.gather(0, index).squeeze(0).masked_fill((lengths == 0).unsqueeze(-1), 0)


# --- 03.2 One loss, divided once ---


def _total(count):
    dist.all_reduce(count)
    return count


@wrong("03.2", says="mean of the ranks' means")
def mean_of_the_mask(losses, mask):
    return losses[mask].mean() if mask.any() else losses[:0].sum()


@wrong("03.2", says="mean of the ranks' means")
def mean_with_the_world_twice(losses, mask):
    own = (losses.nan_to_num() * mask).sum() / max(int(mask.sum()), 1)
    return own * dist.get_world_size() / dist.get_world_size()


@wrong("03.2", says="too small by a factor of the number of ranks")
def gathered_and_not_multiplied(losses, mask):
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, int(mask.sum()))
    return losses[mask].sum() / sum(counts)


@wrong("03.2", says="padding included")
def divides_by_the_cells(losses, mask):
    cells = _total(torch.tensor(float(losses.numel())))
    return torch.where(mask, losses, 0).sum() / cells * dist.get_world_size()


@wrong("03.2", says="includes the padding")
def sums_everything(losses, mask):
    return losses.nan_to_num().sum() * dist.get_world_size() / _total(mask.sum())


@wrong("03.2", says="it should be", never="too large by a factor of the number of ranks")
def waits_after_the_division(losses, mask):
    count = mask.sum()
    work = dist.all_reduce(count, async_op=True)
    loss = losses[mask].sum() * dist.get_world_size() / count
    work.wait()
    return loss


@wrong("03.2", says="divided by its count of 0")
def weighs_its_own_mean(losses, mask):
    count, own = mask.sum(), mask.sum()
    dist.all_reduce(count)
    return losses[mask].mean() * own * dist.get_world_size() / count


@wrong("03.2", says="Zero times nan is nan")
def where_after_the_product(losses, mask):
    weights = mask.double() / _total(mask.sum())
    return (losses * weights).sum() * dist.get_world_size()


@wrong("03.2", says="The loss is right, but its gradient is too small")
def sums_the_losses_over_ranks(losses, mask):
    total = losses[mask].sum()
    whole = _total(total.detach().clone())
    count = _total(mask.sum())
    return whole / count + (total - total.detach()) / count


@wrong("03.2", says="no path from what you return to the weights")
def reduces_what_was_detached(losses, mask):
    both = torch.stack([losses[mask].sum().detach(), mask.sum().double()])
    dist.all_reduce(both)
    return (both[0] / both[1]).requires_grad_()


@wrong("03.2", says="A rank without steps that count returns a number that doesn't depend on any weight")
def a_plain_zero_if_empty(losses, mask):
    count = _total(mask.sum())
    return losses[mask].sum() * dist.get_world_size() / count if mask.any() else torch.tensor(0.0)


@wrong("03.2", says="One bad cell of padding", never="divided by its count of 0")
def all_times_zero_if_empty(losses, mask):
    count = _total(mask.sum())
    return losses[mask].sum() * dist.get_world_size() / count if mask.any() else losses.sum() * 0


@wrong("03.2", says="its gradient includes the padding's")
def zeroes_the_padding_unseen(losses, mask):
    losses.data[~mask] = 0.0
    return losses.sum() * dist.get_world_size() / _total(mask.sum())


@wrong("03.2", says="grows with the batch")
def sum_times_ranks(losses, mask):
    return losses[mask].sum() * dist.get_world_size()


@wrong("03.2", says="You count sequences")
def counts_sequences(losses, mask):
    count = _total(mask.any(dim=0).sum())
    return losses[mask].sum() * dist.get_world_size() / count


@wrong("03.2", says="You divide by more steps than count")
def at_least_one_step_per_rank(losses, mask):
    count = mask.sum()
    dist.all_reduce(count)
    per_rank = (count / dist.get_world_size()).clamp(min=1)
    return losses[mask].sum() / per_rank


@wrong("03.2", says="Your count wraps around")
def counts_in_a_byte(losses, mask):
    return losses[mask].sum() * dist.get_world_size() / _total(mask.sum().to(torch.uint8))


@wrong("03.2", says="You multiply by the number of ranks on which steps count", never="Other cases")
def counts_the_ranks_with_steps(losses, mask):
    return losses[mask].sum() * _total(mask.any().long()) / _total(mask.sum())


@wrong("03.2", says="Every rank divides by one rank's count, the largest")
def takes_the_largest_count(losses, mask):
    count = mask.sum()
    dist.all_reduce(count, dist.ReduceOp.MAX)
    return losses[mask].sum() / count


@right("03.2")
def with_where_and_floats(losses, mask):
    count = _total(mask.float().sum())
    return torch.where(mask, losses, torch.zeros_like(losses)).sum() / (count / dist.get_world_size())


@right("03.2")
def with_all_gather(losses, mask):
    counts = [torch.zeros((), dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, mask.sum())
    return losses.masked_fill(~mask, 0.0).sum() / torch.stack(counts).double().mean()


@right("03.2")
def with_objects(losses, mask):
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, mask.sum().item())
    return torch.masked_select(losses, mask).sum() * len(counts) / sum(counts)


@right("03.2")
def in_float32(losses, mask):
    return losses[mask].float().sum() * dist.get_world_size() / _total(mask.sum())


@right("03.2")
def with_the_true_loss_everywhere(losses, mask):
    # the value is the loss of all on every rank, the gradient this rank's share of it
    ranks, count, own = dist.get_world_size(), _total(mask.sum()), losses[mask].sum()
    return own * ranks / count + (_total(own.detach().clone()) - own.detach() * ranks) / count


# --- 03.3 Batches that cannot hang ---


def longest_first(lengths):
    return sorted(range(len(lengths)), key=lambda index: -lengths[index])


def filled(lengths, order, cells):
    batches = []
    for index in order:
        if batches and (len(batches[-1]) + 1) * max(lengths[other] for other in [*batches[-1], index]) <= cells:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def with_empty_ones(batches, ranks):
    return batches + [[] for _ in range(-len(batches) % ranks)]


@wrong("03.3", says="depends on the process that makes it")
def shuffles_by_the_hash_of_a_name(lengths, cells, rank, ranks):
    order = list(range(len(lengths)))
    random.Random(hash("batches")).shuffle(order)
    order.sort(key=lambda index: -lengths[index])
    return with_empty_ones(filled(lengths, order, cells), ranks)[rank::ranks]


@wrong("03.3", says="The ranks don't agree on one plan", never="thrown away")
def draws_lots_between_equals(lengths, cells, rank, ranks):
    order = list(range(len(lengths)))
    random.SystemRandom().shuffle(order)
    order.sort(key=lambda index: -lengths[index])
    return with_empty_ones(filled(lengths, order, cells), ranks)[rank::ranks]


@wrong("03.3", says="asked for the batches of the same rank")
def asks_the_group_who_it_is(lengths, cells, rank, ranks):
    return with_empty_ones(filled(lengths, longest_first(lengths), cells), ranks)[dist.get_rank() :: ranks]


@wrong("03.3", says="deal these out one by one")
def deals_out_batches(lengths, cells, rank, ranks):
    return filled(lengths, longest_first(lengths), cells)[rank::ranks]


@wrong("03.3", says="deal these out one by one")
def deals_out_unsorted_batches(lengths, cells, rank, ranks):
    return filled(lengths, range(len(lengths)), cells)[rank::ranks]


@wrong("03.3", says="thrown away")
def drops_the_tail(lengths, cells, rank, ranks):
    batches = filled(lengths, longest_first(lengths), cells)
    return batches[: len(batches) // ranks * ranks][rank::ranks]


@wrong("03.3", says="thrown away")
def as_many_as_the_last_rank(lengths, cells, rank, ranks):
    batches = filled(lengths, sorted(range(len(lengths)), key=lengths.__getitem__), cells)
    return [batches[at + rank] for at in range(0, len(batches) - ranks + 1, ranks)]


@wrong("03.3", says="out twice")
def repeats_to_even_out(lengths, cells, rank, ranks):
    batches = filled(lengths, longest_first(lengths), cells)
    while len(batches) % ranks:
        batches.append(batches[0])
    return batches[rank::ranks]


@wrong("03.3", says="cuts batches from them on its own")
def cuts_its_own(lengths, cells, rank, ranks):
    return filled(lengths, longest_first(lengths)[rank::ranks], cells)


@wrong("03.3", says="cuts batches from them on its own")
def cuts_its_own_unsorted(lengths, cells, rank, ranks):
    return filled(lengths, list(range(rank, len(lengths), ranks)), cells)


@wrong("03.3", says="the *real* steps")
def counts_tokens(lengths, cells, rank, ranks):
    batches, used = [[]], 0
    for index in longest_first(lengths):
        if used + lengths[index] > cells:
            batches.append([])
            used = 0
        batches[-1].append(index)
        used += lengths[index]
    return with_empty_ones(batches, ranks)[rank::ranks]


@wrong("03.3", says="Long and short sequences are in one batch")
def does_not_sort(lengths, cells, rank, ranks):
    return with_empty_ones(filled(lengths, range(len(lengths)), cells), ranks)[rank::ranks]


@wrong("03.3", says="Long and short sequences are in one batch")
def shuffles(lengths, cells, rank, ranks):
    order = list(range(len(lengths)))
    random.Random(0).shuffle(order)
    return with_empty_ones(filled(lengths, order, cells), ranks)[rank::ranks]


@wrong("03.3", says="the limits of all ranks together")
def limits_all_ranks_together(lengths, cells, rank, ranks):
    updates = filled(lengths, longest_first(lengths), cells * ranks)
    return [update[rank::ranks] for update in updates]


@wrong("03.3", says="by its *longest* sequence")
def measures_by_the_shortest(lengths, cells, rank, ranks):
    batches = [[]]
    for index in longest_first(lengths):
        if (len(batches[-1]) + 1) * lengths[index] > cells:
            batches.append([])
        batches[-1].append(index)
    return with_empty_ones(batches, ranks)[rank::ranks]


@wrong("03.3", says="have one sequence more than fits")
def one_more_than_fits(lengths, cells, rank, ranks):
    order, batches = longest_first(lengths), []
    while order:
        size = cells // lengths[order[0]] + 1
        batches.append(order[:size])
        order = order[size:]
    return with_empty_ones(batches, ranks)[rank::ranks]


@wrong("03.3", says="every batch has a single sequence")
def one_sequence_each(lengths, cells, rank, ranks):
    return with_empty_ones([[index] for index in longest_first(lengths)], ranks)[rank::ranks]


@wrong("03.3", says="for *all* ranks how many they get")
def by_the_longest_of_the_update(lengths, cells, rank, ranks):
    order, batches = longest_first(lengths), []
    while order:
        size = cells // lengths[order[0]] * ranks
        batches.append(order[:size][rank::ranks])
        order = order[size:]
    return batches


@wrong("03.3", says="going by the longest of that *batch*")
def by_the_longest_of_all(lengths, cells, rank, ranks):
    size = cells // max(lengths) * ranks
    order = longest_first(lengths)
    return [order[start : start + size][rank::ranks] for start in range(0, len(order), size)]


@wrong("03.3", says="one sequence too early")
def fills_strictly_below_the_limit(lengths, cells, rank, ranks):
    batches = []
    for index in longest_first(lengths):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] < cells:
            batches[-1].append(index)
        else:
            batches.append([index])
    return with_empty_ones(batches, ranks)[rank::ranks]


@wrong("03.3", says="before the last update")
def a_stretch_for_each_rank(lengths, cells, rank, ranks):
    batches = filled(lengths, longest_first(lengths), cells)
    each = -(-len(batches) // ranks)
    own = batches[rank * each : (rank + 1) * each]
    return own + [[] for _ in range(each - len(own))]


@wrong("03.3", says="before the last update")
def shortest_first(lengths, cells, rank, ranks):
    return with_empty_ones(filled(lengths, longest_first(lengths)[::-1], cells), ranks)[rank::ranks]


@wrong("03.3", says="before the last update")
def long_ones_to_rank_0(lengths, cells, rank, ranks):
    order = longest_first(lengths)
    each = -(-len(order) // ranks)
    parts = [filled(lengths, order[start : start + each], cells) for start in range(0, each * ranks, each)]
    return parts[rank] + [[]] * (max(map(len, parts)) - len(parts[rank]))


@wrong("03.3", says="talk to each other")
def asks_the_others(lengths, cells, rank, ranks):
    own = filled(lengths, longest_first(lengths), cells)[rank::ranks]
    most = torch.tensor(len(own))
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return own + [[] for _ in range(int(most) - len(own))]


@wrong("03.3", says="These are lengths")
def lengths_instead_of_indices(lengths, cells, rank, ranks):
    batches = filled(lengths, longest_first(lengths), cells)
    return with_empty_ones([[lengths[index] for index in batch] for batch in batches], ranks)[rank::ranks]


@wrong("03.3", says="wait for each other at a barrier", never="talk to each other")
def begins_at_a_barrier(lengths, cells, rank, ranks):
    dist.barrier()
    return with_empty_ones(filled(lengths, longest_first(lengths), cells), ranks)[rank::ranks]


@wrong("03.3", says="deal the sequences out before you cut", never="Long and short")
def deals_before_it_cuts(lengths, cells, rank, ranks):
    parts = [filled(lengths, longest_first(lengths)[other::ranks], cells) for other in range(ranks)]
    return parts[rank] + [[]] * (max(map(len, parts)) - len(parts[rank]))


@right("03.3")
def as_equal_as_possible(lengths, cells, rank, ranks):
    """The smallest limit that needs no more batches."""
    order = longest_first(lengths)
    fewest = len(filled(lengths, order, cells))
    limits = range(max(lengths), cells + 1)
    place = bisect_left(limits, True, key=lambda limit: len(filled(lengths, order, limit)) <= fewest)
    return with_empty_ones(filled(lengths, order, limits[place]), ranks)[rank::ranks]


@right("03.3")
def by_a_generator_of_tuples(lengths, cells, rank, ranks):
    order = torch.tensor(lengths).argsort(descending=True, stable=True)
    start = number = 0
    while start < len(order):
        size = cells // lengths[int(order[start])]
        if number % ranks == rank:
            yield tuple(order[start : start + size])
        start, number = start + size, number + 1
    if 0 < number % ranks <= rank:
        yield ()


@right("03.3")
def from_the_last_rank_on(lengths, cells, rank, ranks):
    """Dealt out from the other end, and the last update is shared out evenly."""
    batches = filled(lengths, longest_first(lengths), cells)
    full = (len(batches) - 1) // ranks * ranks
    left = [index for batch in batches[full:] for index in batch]
    if len(batches) - full == 1:
        return [*batches[:full][ranks - 1 - rank :: ranks], left[rank::ranks]]
    return [
        *batches[:full][ranks - 1 - rank :: ranks],
        *with_empty_ones(batches[full:], ranks)[ranks - 1 - rank :: ranks],
    ]


@right("03.3")
def by_recursion(lengths, cells, rank, ranks):
    def cut(order):
        size = cells // lengths[order[0]] if order else 0
        return [order[:size], *cut(order[size:])] if order else []

    batches = cut(longest_first(lengths))
    updates = range(0, len(batches), ranks)
    return [batches[at + rank] if at + rank < len(batches) else [] for at in updates]
