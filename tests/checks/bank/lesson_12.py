"""Answers to the exercises of lesson 12, wrong and right."""

import torch
import torch.distributed as dist
from torch.nn import functional

from tests.checks.bank import right, wrong

# --- 12.1 Cut an MLP ---


def bias_for(bias, rank):
    return bias if rank == 0 else torch.zeros_like(bias)


def cut(up, up_bias, down, down_bias, rank, own):
    return up[own], up_bias[own], down[:, own], bias_for(down_bias, rank)


@wrong("12.1", says="Every rank has all columns")
def everything_everywhere(up, up_bias, down, down_bias, rank, ranks):
    return up, up_bias, down / ranks, down_bias / ranks


@wrong("12.1", says="You cut `up` along its inputs")
def up_along_its_inputs(up, up_bias, down, down_bias, rank, ranks):
    return up.tensor_split(ranks, dim=1)[rank], up_bias, down.tensor_split(ranks)[rank], bias_for(down_bias, rank)


@wrong("12.1", says="`up` is cut and `up_bias` is not")
def all_of_the_first_bias(up, up_bias, down, down_bias, rank, ranks):
    return up.tensor_split(ranks)[rank], up_bias, down.tensor_split(ranks, dim=1)[rank], bias_for(down_bias, rank)


@wrong("12.1", says="You cut `down` along its outputs")
def down_along_its_outputs(up, up_bias, down, down_bias, rank, ranks):
    own = up_bias.tensor_split(ranks)[rank]
    return up.tensor_split(ranks)[rank], own, down.tensor_split(ranks)[rank], bias_for(down_bias, rank)


@wrong("12.1", says="it is added once per rank")
def bias_on_every_rank(up, up_bias, down, down_bias, rank, ranks):
    own = torch.arange(len(up)).tensor_split(ranks)[rank]
    return up[own], up_bias[own], down[:, own], down_bias


@wrong("12.1", says="`down_bias` is missing from the sum")
def no_bias(up, up_bias, down, down_bias, rank, ranks):
    own = torch.arange(len(up)).tensor_split(ranks)[rank]
    return up[own], up_bias[own], down[:, own], torch.zeros_like(down_bias)


@wrong("12.1", says="Some columns are on no rank")
def without_the_rest(up, up_bias, down, down_bias, rank, ranks):
    each = len(up) // ranks
    return cut(up, up_bias, down, down_bias, rank, slice(rank * each, (rank + 1) * each))


@wrong("12.1", says="some are on two ranks")
def overlapping(up, up_bias, down, down_bias, rank, ranks):
    each = -(-len(up) // ranks)
    first = min(rank * each, len(up) - each)
    return cut(up, up_bias, down, down_bias, rank, slice(first, first + each))


@wrong("12.1", says="column j of `up` feeds column j of `down`'s weight")
def strides_and_blocks(up, up_bias, down, down_bias, rank, ranks):
    own = torch.arange(len(up)).tensor_split(ranks)[rank]
    spread = torch.cat([torch.arange(start, len(up), ranks) for start in range(ranks)]).tensor_split(ranks)[rank]
    return up[own], up_bias[own], down[:, spread], bias_for(down_bias, rank)


@wrong("12.1", says="You change the weights that you were given")
def zeroes_the_bias_in_place(up, up_bias, down, down_bias, rank, ranks):
    own = torch.arange(len(up)).tensor_split(ranks)[rank]
    part = up[own], up_bias[own], down[:, own], down_bias.clone()
    down_bias.zero_()
    return part


@wrong("12.1", says="it may give fewer chunks than you ask for")
def chunks(up, up_bias, down, down_bias, rank, ranks):
    first, bias, second = up.chunk(ranks)[rank], up_bias.chunk(ranks)[rank], down.chunk(ranks, dim=1)[rank]
    return first, bias, second, bias_for(down_bias, rank)


@wrong("12.1", says="more columns than it needs to")
def the_rest_on_the_last_rank(up, up_bias, down, down_bias, rank, ranks):
    each = len(up) // ranks
    own = slice(rank * each, None if rank == ranks - 1 else (rank + 1) * each)
    return cut(up, up_bias, down, down_bias, rank, own)


@wrong("12.1", says="a weight is transposed", never="You cut `up`")
def up_transposed(up, up_bias, down, down_bias, rank, ranks):
    first, *others = cut(up, up_bias, down, down_bias, rank, torch.arange(len(up)).tensor_split(ranks)[rank])
    return first.T, *others


@wrong("12.1", says="a weight is transposed", never="You cut `down`")
def down_transposed(up, up_bias, down, down_bias, rank, ranks):
    first, bias, second, last = cut(up, up_bias, down, down_bias, rank, slice(rank, None, ranks))
    return first, bias, second.T, last


@wrong("12.1", says="You cut `down_bias`")
def the_last_bias_in_parts(up, up_bias, down, down_bias, rank, ranks):
    own = torch.arange(len(up)).tensor_split(ranks)[rank]
    return up[own], up_bias[own], down[:, own], down_bias.tensor_split(ranks)[rank]


@wrong("12.1", says="returned None where a tensor should be")
def none_for_a_bias(up, up_bias, down, down_bias, rank, ranks):
    own = torch.arange(len(up)).tensor_split(ranks)[rank]
    return up[own], up_bias[own], down[:, own], down_bias if rank == 0 else None


@wrong("12.1", says="ranks which have no columns")
def no_bias_without_columns(up, up_bias, down, down_bias, rank, ranks):
    each = -(-up.shape[0] // ranks)
    part = slice(rank * each, (rank + 1) * each)
    own = up[part]
    bias = down_bias / ranks if len(own) else torch.zeros_like(down_bias)
    return own, up_bias[part], down[:, part], bias


@right("12.1")
def padded_with_zeros(up, up_bias, down, down_bias, rank, ranks):
    each = -(-len(up) // ranks)
    first, bias, second, last = cut(up, up_bias, down, down_bias, rank, slice(rank * each, (rank + 1) * each))
    left = each - len(first)
    return (
        functional.pad(first, (0, 0, 0, left)),
        functional.pad(bias, (0, left)),
        functional.pad(second, (0, left)),
        last,
    )


@right("12.1")
def round_robin(up, up_bias, down, down_bias, rank, ranks):
    return cut(up, up_bias, down, down_bias, rank, slice(rank, None, ranks))


@right("12.1")
def a_share_of_the_bias(up, up_bias, down, down_bias, rank, ranks):
    own = torch.arange(len(up)).tensor_split(ranks)[rank]
    return [up[own], up_bias[own], down[:, own], down_bias / ranks]


@right("12.1")
def from_the_back(up, up_bias, down, down_bias, rank, ranks):
    own = torch.arange(len(up)).flip(0).tensor_split(ranks)[rank]
    last = down_bias if rank == ranks - 1 else 0 * down_bias
    return up[own], up_bias[own], down.index_select(1, own), last


@wrong("12.1", says="has fewer numbers than the outputs", never="You cut `down_bias`")
def a_single_zero(up, up_bias, down, down_bias, rank, ranks):
    own = slice(rank, None, ranks)
    return up[own], up_bias[own], down[:, own], down_bias if rank == 0 else torch.zeros(1)


# --- 12.2 Attention over ranks ---


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, whole):
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


class Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part):
        total = part.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class AddedTwice(Added):
    @staticmethod
    def backward(ctx, gradient):
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


def by_head(tensor, heads):
    return tensor.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)


def mixed(inputs, query, key, value, heads, **options):
    split = [by_head(inputs @ weight.T, heads) for weight in (query, key, value)]
    result = functional.scaled_dot_product_attention(*split, **{"is_causal": True} | options)
    return result.permute(2, 0, 1, 3).flatten(-2)


@wrong("12.2", says="The outputs are each rank's own part")
def without_a_sum(inputs, query, key, value, out, heads):
    return mixed(Copied.apply(inputs), query, key, value, heads) @ out.T


@wrong("12.2", says="This is the mean over the ranks")
def the_mean(inputs, query, key, value, out, heads):
    return Added.apply(mixed(Copied.apply(inputs), query, key, value, heads) @ out.T) / dist.get_world_size()


@wrong("12.2", says="attention that looks ahead")
def looks_ahead(inputs, query, key, value, out, heads):
    return Added.apply(mixed(Copied.apply(inputs), query, key, value, heads, is_causal=False) @ out.T)


@wrong("12.2", says="The scores are not scaled")
def without_a_scale(inputs, query, key, value, out, heads):
    return Added.apply(mixed(Copied.apply(inputs), query, key, value, heads, scale=1.0) @ out.T)


@wrong("12.2", says="square root of the whole width")
def scaled_by_the_width(inputs, query, key, value, out, heads):
    scale = inputs.shape[-1] ** -0.5
    return Added.apply(mixed(Copied.apply(inputs), query, key, value, heads, scale=scale) @ out.T)


@wrong("12.2", says="You treat all of the rank's heads as one")
def one_head(inputs, query, key, value, out, heads):
    return Added.apply(mixed(Copied.apply(inputs), query, key, value, 1) @ out.T)


@wrong("12.2", says="every rank uses all inputs, so their gradient is a sum over the ranks")
def forgets_the_inputs(inputs, query, key, value, out, heads):
    return Added.apply(mixed(inputs, query, key, value, heads) @ out.T)


@wrong("12.2", says="and you sum it once more")
def sums_the_gradient_again(inputs, query, key, value, out, heads):
    return AddedTwice.apply(mixed(Copied.apply(inputs), query, key, value, heads) @ out.T)


@wrong("12.2", says="it does not come back through your sum")
def detached(inputs, query, key, value, out, heads):
    part = (mixed(Copied.apply(inputs), query, key, value, heads) @ out.T).detach()
    dist.all_reduce(part)
    return part.requires_grad_()


@wrong("12.2", says="The outputs don't have the shape of the inputs")
def gathered_side_by_side(inputs, query, key, value, out, heads):
    part = (mixed(Copied.apply(inputs), query, key, value, heads) @ out.T).detach()
    everyone = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, part)
    return torch.cat(everyone, dim=-1)


@wrong("12.2", says="with more collectives than needed")
def a_sum_for_each_projection(inputs, query, key, value, out, heads):
    split = [by_head(Copied.apply(inputs) @ weight.T, heads) for weight in (query, key, value)]
    result = functional.scaled_dot_product_attention(*split, is_causal=True)
    return Added.apply(result.permute(2, 0, 1, 3).flatten(-2) @ out.T)


class Averaged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, whole):
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx, gradient):
        return Copied.backward(ctx, gradient) / dist.get_world_size()


class AddedAndDivided(Added):
    @staticmethod
    def backward(ctx, gradient):
        return gradient / dist.get_world_size()


@wrong(
    "12.2",
    says="A gradient is too small by a factor of the number of ranks",
    never="only the part from this rank's own heads",
)
def averages_the_inputs_gradient(inputs, query, key, value, out, heads):
    return Added.apply(mixed(Averaged.apply(inputs), query, key, value, heads) @ out.T)


@wrong("12.2", says="A gradient is too small by a factor of the number of ranks")
def divides_the_gradient(inputs, query, key, value, out, heads):
    return AddedAndDivided.apply(mixed(Copied.apply(inputs), query, key, value, heads) @ out.T)


@wrong("12.2", says="and you sum it once more")
def with_torchs_own_all_reduce(inputs, query, key, value, out, heads):
    from torch.distributed.nn.functional import all_reduce

    return all_reduce(mixed(Copied.apply(inputs), query, key, value, heads) @ out.T)


@wrong("12.2", says="Divide by its square root", never="of the whole width")
def scaled_without_a_root(inputs, query, key, value, out, heads):
    return Added.apply(mixed(Copied.apply(inputs), query, key, value, heads, scale=heads / len(query)) @ out.T)


@wrong("12.2", says="of all the rank's heads together")
def scaled_by_the_ranks_width(inputs, query, key, value, out, heads):
    return Added.apply(mixed(Copied.apply(inputs), query, key, value, heads, scale=len(query) ** -0.5) @ out.T)


@wrong("12.2", says="Your mask hides the *earlier* steps")
def the_other_half_hidden(inputs, query, key, value, out, heads):
    seen = torch.ones(len(inputs), len(inputs), dtype=torch.bool).triu()
    return Added.apply(mixed(Copied.apply(inputs), query, key, value, heads, is_causal=False, attn_mask=seen) @ out.T)


@wrong("12.2", says="The heads are taken apart in the wrong order")
def heads_in_strides(inputs, query, key, value, out, heads):
    copy = Copied.apply(inputs)
    split = [(copy @ weight.T).unflatten(-1, (-1, heads)).mT.permute(1, 2, 0, 3) for weight in (query, key, value)]
    result = functional.scaled_dot_product_attention(*split, is_causal=True)
    return Added.apply(result.permute(2, 0, 1, 3).flatten(-2) @ out.T)


@wrong("12.2", says="a hook on `inputs` sees all")
def a_hook_on_the_inputs(inputs, query, key, value, out, heads):
    class Add(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            tensor = tensor.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(tensor)
            return tensor

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    def whole(gradient):
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient

    if inputs.requires_grad:
        inputs.register_hook(whole)
    steps, sequences, _ = inputs.shape
    q, k, v = ((inputs @ w.T).view(steps, sequences, heads, -1).permute(1, 2, 0, 3) for w in (query, key, value))
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return Add.apply(mixed.permute(2, 0, 1, 3).reshape(steps, sequences, -1) @ out.T)


@right("12.2")
def with_a_softmax_of_its_own(inputs, query, key, value, out, heads):
    inputs = Copied.apply(inputs)
    q, k, v = (by_head(inputs @ weight.T, heads) for weight in (query, key, value))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    result = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
    return Added.apply(torch.einsum("bhse,dhe->sbd", result, out.unflatten(-1, (heads, -1))))


@right("12.2")
def with_the_librarys_functions(inputs, query, key, value, out, heads):
    from course_lib.model_parallel.tensor_parallel import UsedInParts
    from course_lib.transformer.gpt import Summed

    return Summed.apply(mixed(UsedInParts.apply(inputs), query, key, value, heads) @ out.T)


@right("12.2")
def with_a_hook(inputs, query, key, value, out, heads):
    def summed(gradient):
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total

    copy = inputs.clone()
    copy.register_hook(summed)
    part = mixed(copy, query, key, value, heads) @ out.T
    others = part.detach().clone()
    dist.all_reduce(others)
    return part + (others - part.detach())


@right("12.2")
def one_head_after_another(inputs, query, key, value, out, heads):
    inputs, total = Copied.apply(inputs), 0
    for q, k, v, o in zip(*(w.chunk(heads) for w in (query, key, value)), out.chunk(heads, dim=1), strict=True):
        total = total + mixed(inputs, q, k, v, 1) @ o.T
    return Added.apply(total)


@right("12.2")
def a_hook_on_a_view(inputs, query, key, value, out, heads):
    class Together(torch.autograd.Function):
        @staticmethod
        def forward(ctx, partial):
            total = partial.detach().clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total)
            return total

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    def from_all_ranks(gradient):
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient

    x = inputs.view_as(inputs)  # of this call alone: the hook must not stay on the caller's tensor
    if x.requires_grad:
        x.register_hook(from_all_ranks)
    steps, own = inputs.shape[0], query.shape[0]
    seen = torch.ones(steps, steps, dtype=torch.bool, device=inputs.device).tril()
    size = own // heads
    partial = 0
    for start in range(0, own, size):
        part = slice(start, start + size)
        q, k, v = (x @ weight[part].t() for weight in (query, key, value))
        scores = torch.einsum("tbd,sbd->bts", q, k) * size**-0.5
        weights = scores.where(seen, torch.full_like(scores, float("-inf"))).softmax(-1)
        partial = partial + torch.einsum("bts,sbd->tbd", weights, v) @ out[:, part].t()
    return Together.apply(partial)


@wrong("12.2", says="something cuts one of them off", never="it does not come back through your sum")
def detached_inputs(inputs, query, key, value, out, heads):
    return Added.apply(mixed(inputs.detach(), query, key, value, heads) @ out.T)


# --- 12.3 The rescaled sum ---


def scores_of(query, key, mask, hidden=float("-inf")):
    return (query @ key.T / query.shape[-1] ** 0.5).masked_fill(~mask, hidden)


def running(query, visitors, rescale_values=True, rescale_sum=True, hidden=float("-inf")):
    over, under, most = 0.0, 0.0, torch.full((len(query), 1), max(hidden, -1e300), dtype=query.dtype)
    for key, value, mask in visitors:
        scores = scores_of(query, key, mask, hidden)
        new = torch.maximum(most, scores.amax(-1, keepdim=True))
        factor, weights = (most - new).exp(), (scores - new).exp()
        over = (factor if rescale_values else 1.0) * over + weights @ value
        under = (factor if rescale_sum else 1.0) * under + weights.sum(-1, keepdim=True)
        most = new
    return over / under


@wrong("12.3", says="This is the mean of the visits' results")
def averages(query, visitors):
    results = [scores_of(query, key, mask).softmax(-1) @ value for key, value, mask in visitors]
    return torch.stack(results).mean(0)


@wrong("12.3", says="This is the sum of the visits' results")
def adds_up(query, visitors):
    return sum(scores_of(query, key, mask).softmax(-1) @ value for key, value, mask in visitors)


@wrong("12.3", says="Each visit subtracts its own largest score")
def own_maximum(query, visitors):
    over = under = 0
    for key, value, mask in visitors:
        scores = scores_of(query, key, mask)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        over, under = over + weights @ value, under + weights.sum(-1, keepdim=True)
    return over / under


@wrong("12.3", says="multiply *both* sums by exp(old maximum - new maximum)")
def never_rescales(query, visitors):
    return running(query, visitors, rescale_values=False, rescale_sum=False)


@wrong("12.3", says="multiply *both* sums by exp(old maximum - new maximum)")
def rescales_only_the_sum(query, visitors):
    return running(query, visitors, rescale_values=False)


@wrong("12.3", says="multiply *both* sums by exp(old maximum - new maximum)")
def rescales_only_the_values(query, visitors):
    return running(query, visitors, rescale_sum=False)


@wrong("12.3", says="exp(1000) is infinite")
def without_a_maximum(query, visitors):
    over = under = 0
    for key, value, mask in visitors:
        weights = scores_of(query, key, mask).exp()
        over, under = over + weights @ value, under + weights.sum(-1, keepdim=True)
    return over / under


@wrong("12.3", says="Minus infinity minus minus infinity is nan")
def starts_at_minus_infinity(query, visitors):
    over, under, most = 0.0, 0.0, torch.full((len(query), 1), float("-inf"), dtype=query.dtype)
    for key, value, mask in visitors:
        scores = scores_of(query, key, mask)
        new = torch.maximum(most, scores.amax(-1, keepdim=True))
        factor, weights = (most - new).exp(), (scores - new).exp()
        over, under, most = factor * over + weights @ value, factor * under + weights.sum(-1, keepdim=True), new
    return over / under


@wrong("12.3", says="You use keys or values after their visitor has left")
def keeps_them_all(query, visitors):
    keys, values, masks = zip(*visitors, strict=True)
    return scores_of(query, torch.cat(keys), torch.cat(masks, dim=1)).softmax(-1) @ torch.cat(values)


@wrong("12.3", says="you keep something of every visit until the end")
def keeps_copies(query, visitors):
    kept = [(key.clone(), value.clone(), mask) for key, value, mask in visitors]
    keys, values, masks = zip(*kept, strict=True)
    return scores_of(query, torch.cat(keys), torch.cat(masks, dim=1)).softmax(-1) @ torch.cat(values)


@wrong("12.3", says="even those that the mask hides")
def without_the_mask(query, visitors):
    return running(query, ((key, value, torch.ones_like(mask)) for key, value, mask in visitors))


@wrong("12.3", says="not divided by the square root of the width")
def without_a_scale_at_all(query, visitors):
    return running(query * query.shape[-1] ** 0.5, visitors)


@wrong("12.3", says="by the width itself")
def scaled_by_the_width_itself(query, visitors):
    return running(query / query.shape[-1] ** 0.5, visitors)


@wrong("12.3", says="You hide the keys that the mask shows")
def the_mask_turned_around(query, visitors):
    return running(query, ((key, value, ~mask) for key, value, mask in visitors))


@wrong("12.3", says="with a score that isn't low enough")
def hides_with_minus_a_thousand(query, visitors):
    return running(query, visitors, hidden=-1e3)


@wrong("12.3", says="You subtract one maximum for all queries")
def one_maximum(query, visitors):
    over, under, most = 0.0, 0.0, torch.tensor(-1e300, dtype=query.dtype)
    for key, value, mask in visitors:
        scores = scores_of(query, key, mask)
        new = torch.maximum(most, scores.max())
        factor, weights = (most - new).exp(), (scores - new).exp()
        over, under, most = factor * over + weights @ value, factor * under + weights.sum(-1, keepdim=True), new
    return over / under


@wrong("12.3", says="Subtract the largest score so far", never="the mask")
def the_maximum_of_the_last_visit(query, visitors):
    over, under, most = 0.0, 0.0, torch.full((len(query), 1), -1e300, dtype=query.dtype)
    for key, value, mask in visitors:
        scores = scores_of(query, key, mask)
        new = scores.amax(-1, keepdim=True)
        factor, weights = (most - new).exp(), (scores - new).exp()
        over, under, most = factor * over + weights @ value, factor * under + weights.sum(-1, keepdim=True), new
    return over / under


@wrong("12.3", says="by the sum of the weights")
def never_divides(query, visitors):
    over, most = 0.0, torch.full((len(query), 1), -1e300, dtype=query.dtype)
    for key, value, mask in visitors:
        scores = scores_of(query, key, mask)
        new = torch.maximum(most, scores.amax(-1, keepdim=True))
        over, most = (most - new).exp() * over + (scores - new).exp() @ value, new
    return over


@right("12.3")
def hides_with_minus_a_billion(query, visitors):
    return running(query, visitors, hidden=-1e9)


@right("12.3")
def with_logarithms(query, visitors):
    outputs, log_sum = torch.zeros_like(query), torch.full((len(query), 1), -1e300, dtype=query.dtype)
    for key, value, mask in visitors:
        scores = (query @ key.T / query.shape[-1] ** 0.5).masked_fill(~mask, -1e300)
        more = scores.logsumexp(-1, keepdim=True)
        total = torch.logaddexp(log_sum, more)
        outputs = outputs * (log_sum - total).exp() + scores.softmax(-1) @ value * (more - total).exp()
        log_sum = total
    return outputs


@right("12.3")
def nan_to_num_where_nothing_was_seen(query, visitors):
    over, under, most = 0.0, 0.0, torch.full((len(query), 1), float("-inf"), dtype=query.dtype)
    for key, value, mask in visitors:
        scores = scores_of(query, key, mask)
        new = torch.maximum(most, scores.amax(-1, keepdim=True))
        factor, weights = (most - new).exp().nan_to_num(), (scores - new).exp().nan_to_num()
        over, under, most = factor * over + weights @ value, factor * under + weights.sum(-1, keepdim=True), new
    return over / under


@right("12.3")
def key_by_key(query, visitors):
    over, under = torch.zeros_like(query), torch.zeros_like(query[:, :1])
    most = torch.full_like(under, -1e300)
    for key, value, mask in visitors:
        for k, v, seen in zip(key, value, mask.T, strict=True):
            score = (query @ k / len(k) ** 0.5)[:, None]
            new = torch.where(seen[:, None], torch.maximum(most, score), most)
            weight = torch.where(seen[:, None], (score - new).exp(), torch.zeros_like(score))
            over = (most - new).exp() * over + weight * v
            under = (most - new).exp() * under + weight
            most = new
    return over / under


@wrong("12.3", says="You hide a key with a score that isn't low enough")
def masked_scores_are_zero(query, visitors):
    return running(query, visitors, hidden=0.0)


@wrong("12.3", says="the next one may bring a key", never="the mean of the visits' results")
def stops_at_an_empty_visit(query, visitors):
    over, under, most = torch.zeros_like(query), 0 * query[:, :1], torch.full_like(query[:, :1], -1e30)
    for key, value, mask in visitors:
        if not mask.any():
            break
        scores = scores_of(query, key, mask)
        new = torch.maximum(most, scores.amax(-1, keepdim=True))
        factor, weights = (most - new).exp(), (scores - new).exp()
        over, under, most = factor * over + weights @ value, factor * under + weights.sum(-1, keepdim=True), new
    return over / under
