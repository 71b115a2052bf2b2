"""Answers to the exercises of lesson 07: wrong ones with what their writer is to be told, and unusual right ones."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.checks.bank import NEVER_WAITS, right, wrong

# 07.1 Rows and columns


def place(rank, replicas, stages):
    replica, stage = divmod(rank, stages)
    return {
        "row": list(range(replica * stages, (replica + 1) * stages)),
        "column": list(range(stage, replicas * stages, stages)),
        "before": rank - 1 if stage else None,
        "after": rank + 1 if stage < stages - 1 else None,
    }


@wrong("07.1", says="Row and column are swapped")
def exchanged(rank, replicas, stages):
    ours = place(rank, replicas, stages)
    return {**ours, "row": ours["column"], "column": ours["row"]}


@wrong("07.1", says="column by column")
def numbered_by_columns(rank, replicas, stages):
    stage, replica = divmod(rank, replicas)
    return {
        "row": [other * replicas + replica for other in range(stages)],
        "column": [stage * replicas + other for other in range(replicas)],
        "before": rank - replicas if stage else None,
        "after": rank + replicas if stage < stages - 1 else None,
    }


@wrong("07.1", says="divide the rank by the number of replicas")
def divided_by_replicas(rank, replicas, stages):
    replica, stage = divmod(rank, replicas)
    return {
        "row": [replica * stages + other for other in range(stages)],
        "column": [other * stages + stage for other in range(replicas)],
        "before": rank - 1 if stage > 0 else None,
        "after": rank + 1 if stage < stages - 1 else None,
    }


@wrong("07.1", says="even the calling rank")
def others_alone(rank, replicas, stages):
    ours = place(rank, replicas, stages)
    return {**ours, "column": [other for other in ours["column"] if other != rank]}


@wrong("07.1", says="a list of *ranks*")
def numbers_of_stages(rank, replicas, stages):
    return {**place(rank, replicas, stages), "row": list(range(stages)), "column": list(range(replicas))}


@wrong("07.1", says="A replica ends where its row ends")
def next_rank(rank, replicas, stages):
    after = rank + 1 if rank + 1 < replicas * stages else None
    return {**place(rank, replicas, stages), "before": rank - 1 if rank else None, "after": after}


@wrong("07.1", says="A replica ends where its row ends")
def only_after_runs_on(rank, replicas, stages):
    return {**place(rank, replicas, stages), "after": rank + 1 if rank + 1 < replicas * stages else None}


@wrong("07.1", says="not a ring")
def ring(rank, replicas, stages):
    replica, stage = divmod(rank, stages)
    start = replica * stages
    neighbors = {"before": start + (stage - 1) % stages, "after": start + (stage + 1) % stages}
    return {**place(rank, replicas, stages), **neighbors}


@wrong("07.1", says="return None")
def minus_one(rank, replicas, stages):
    ours = place(rank, replicas, stages)
    return {name: -1 if value is None else value for name, value in ours.items()}


@wrong("07.1", says="return None")
def itself_at_the_ends(rank, replicas, stages):
    row = place(rank, replicas, stages)["row"]
    return {**place(rank, replicas, stages), "before": max(rank - 1, row[0]), "after": min(rank + 1, row[-1])}


@wrong("07.1", says="Rank 0 is a rank like any other")
def zero_is_false(rank, replicas, stages):
    before = (rank - 1) * (rank % stages > 0) or None
    return {**place(rank, replicas, stages), "before": before}


@wrong("07.1", says="Before and after are swapped")
def upstream(rank, replicas, stages):
    ours = place(rank, replicas, stages)
    return {**ours, "before": ours["after"], "after": ours["before"]}


@wrong("07.1", says="there is no 'before'")
def forgets_neighbors(rank, replicas, stages):
    ours = place(rank, replicas, stages)
    return {"row": ours["row"], "column": ours["column"]}


@wrong("07.1", says="column[1] is 0, it should be 3")
def column_of_two(rank, replicas, stages):
    ours = place(rank, replicas, stages)
    return {**ours, "column": [rank % stages, rank]}


@wrong("07.1", says="The length of a row is the number of *stages*", never="swapped")
def rows_as_long_as_the_replicas(rank, replicas, stages):
    row, place = divmod(rank, replicas)
    return {
        "row": list(range(row * replicas, (row + 1) * replicas)),
        "column": list(range(place, replicas * stages, replicas)),
        "before": rank - 1 if place > 0 else None,
        "after": rank + 1 if place < replicas - 1 else None,
    }


@right("07.1")
def from_a_table(rank, replicas, stages):
    table = torch.arange(replicas * stages).view(replicas, stages)
    replica, stage = (int(index) for index in (table == rank).nonzero()[0])
    row = table[replica]
    return {
        "row": row,
        "column": table[:, stage],
        "before": row[stage - 1] if stage else None,
        "after": row[stage + 1] if stage + 1 < stages else None,
    }


@right("07.1")
def with_ranges(rank, replicas, stages):
    start = rank - rank % stages
    row = range(start, start + stages)
    column = range(rank - start, replicas * stages, stages)
    inside = dict(enumerate(row, start))
    return {"row": row, "column": tuple(column), "before": inside.get(rank - 1), "after": inside.get(rank + 1)}


@right("07.1")
def by_searching(rank, replicas, stages):
    everyone = range(replicas * stages)
    row = [other for other in everyone if other // stages == rank // stages]
    padded = [None, *row, None]
    at = padded.index(rank)
    column = sorted(other for other in everyone if (other - rank) % stages == 0)
    return {"row": row, "column": column, "before": padded[at - 1], "after": padded[at + 1]}


# 07.2 Sum over the replicas


def column_group(replicas):
    world = dist.get_world_size()
    stages = world // replicas
    groups = [dist.new_group(list(range(stage, world, stages))) for stage in range(stages)]
    return groups[dist.get_rank() % stages]


def row_group(replicas):
    stages = dist.get_world_size() // replicas
    groups = [dist.new_group(list(range(r * stages, (r + 1) * stages))) for r in range(replicas)]
    return groups[dist.get_rank() // stages]


def summed(value, group=None):
    total = value.clone() if isinstance(value, torch.Tensor) else torch.tensor(value)
    dist.all_reduce(total, group=group)
    return total


@wrong("07.2", says="You add up over all ranks")
def over_all_ranks(model, count, replicas):
    total = torch.tensor(count)
    dist.all_reduce(model.weight.grad)
    dist.all_reduce(total)
    model.weight.grad /= total


@wrong("07.2", says="You add up over all ranks")
def over_all_ranks_right_count(model, count, replicas):
    model.weight.grad = summed(model.weight.grad) / summed(count, column_group(replicas))


@wrong("07.2", says="the stages of your own replica")
def over_the_row(model, count, replicas):
    group = row_group(replicas)
    model.weight.grad = summed(model.weight.grad, group) / summed(count, group)


@wrong("07.2", says="once for each stage")
def count_over_all_ranks(model, count, replicas):
    model.weight.grad = summed(model.weight.grad, column_group(replicas)) / summed(count)


@wrong("07.2", says="The count must be added up")
def count_over_the_row(model, count, replicas):
    total = summed(count, row_group(replicas))
    model.weight.grad = summed(model.weight.grad, column_group(replicas)) / total.clamp(min=1)


@wrong("07.2", says="mean of the replicas' means")
def mean_of_means(model, count, replicas):
    if count:
        model.weight.grad /= count
    dist.all_reduce(model.weight.grad, group=column_group(replicas))
    model.weight.grad /= replicas


@wrong("07.2", says="divides its zeros by its own count")
def mean_of_means_with_nan(model, count, replicas):
    group = column_group(replicas)
    weight = summed(count, group)
    model.weight.grad = summed(model.weight.grad / torch.tensor(count) * count, group) / weight


@wrong("07.2", says="this replica's count alone")
def own_count(model, count, replicas):
    dist.all_reduce(model.weight.grad, group=column_group(replicas))
    model.weight.grad /= max(count, 1)


@wrong("07.2", says="the gradient of the *sum* of the losses")
def sum_without_mean(model, count, replicas):
    dist.all_reduce(model.weight.grad, group=column_group(replicas))


@wrong("07.2", says="The mean is over *tokens*")
def divided_by_the_replicas(model, count, replicas):
    dist.all_reduce(model.weight.grad, group=column_group(replicas))
    model.weight.grad /= replicas


@wrong("07.2", says="`.grad` is unchanged")
def thrown_away(model, count, replicas):
    group = column_group(replicas)
    gradient = summed(model.weight.grad, group)
    gradient /= summed(count, group)


@wrong("07.2", says="nothing was added up")
def own_mean(model, count, replicas):
    model.weight.grad = model.weight.grad / max(count, 1)


@wrong("07.2", says="will not come")
def empty_replicas_leave(model, count, replicas):
    group = column_group(replicas)
    if count == 0:
        return
    model.weight.grad = summed(model.weight.grad, group) / summed(count, group)


@wrong("07.2", says="more than your own gradient")
def table_of_all_stages(model, count, replicas):
    stages = dist.get_world_size() // replicas
    widths = torch.zeros(stages, dtype=torch.int64)
    widths[dist.get_rank() % stages] = len(model.weight)
    dist.all_reduce(widths, op=dist.ReduceOp.MAX)
    table = torch.zeros(stages, int(widths.max()) + 1, dtype=model.weight.dtype)
    mine = table[dist.get_rank() % stages]
    mine[: len(model.weight)], mine[-1] = model.weight.grad, count
    dist.all_reduce(table)
    model.weight.grad = mine[: len(model.weight)] / mine[-1]


@wrong("07.2", says=NEVER_WAITS)
def summed_and_forgotten(model, count, replicas):
    group, total = column_group(replicas), torch.tensor(count)
    dist.all_reduce(total, group=group)
    dist.all_reduce(model.weight.grad, group=group, async_op=True)
    model.weight.grad /= total


@wrong("07.2", says="None of the groups that you make is a column", never="nothing was added up")
def every_so_many_replicas(model, count, replicas):
    ranks, rank = dist.get_world_size(), dist.get_rank()
    own = None
    for first in range(replicas):
        members = list(range(first, ranks, replicas))
        group = dist.new_group(members)
        if rank in members:
            own = group
    gradient = model.weight.grad
    tokens = torch.tensor(count)
    dist.all_reduce(gradient, group=own)
    dist.all_reduce(tokens, group=own)
    gradient /= tokens.clamp(min=1)


@wrong("07.2", says="those without still have their zeros", never="nothing was added up")
def empty_replicas_keep_theirs(model, count, replicas):
    stages = dist.get_world_size() // replicas
    columns = [[row * stages + stage for row in range(replicas)] for stage in range(stages)]
    column, _ = dist.new_subgroups_by_enumeration(columns)
    total, tokens = model.weight.grad.clone(), torch.tensor([count])
    dist.all_reduce(total, group=column)
    dist.all_reduce(tokens, group=column)
    if count:
        model.weight.grad.copy_(total / tokens)


@right("07.2")
def sends_float64(model, count, replicas):
    stages = dist.get_world_size() // replicas
    groups = [dist.new_group(list(range(stage, replicas * stages, stages))) for stage in range(stages)]
    group = groups[dist.get_rank() % stages]
    gradient = model.weight.grad
    both = torch.cat([gradient.double(), torch.tensor([count], dtype=torch.float64)])
    dist.all_reduce(both, group=group)
    gradient.copy_(both[:-1] / both[-1])


@right("07.2")
def count_in_the_same_tensor(model, count, replicas):
    both = torch.cat([model.weight.grad, torch.tensor([float(count)], dtype=torch.float64)])
    dist.all_reduce(both, group=column_group(replicas))
    model.weight.grad.copy_(both[:-1] / both[-1])


@right("07.2")
def with_a_device_mesh(model, count, replicas):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (replicas, dist.get_world_size() // replicas), mesh_dim_names=("replica", "stage"))
    group = mesh.get_group("replica")
    model.weight.grad = summed(model.weight.grad, group).div(summed(float(count), group))


@right("07.2")
def gathered_in_the_column(model, count, replicas):
    group = column_group(replicas)
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(replicas)]
    gradients = [torch.zeros_like(model.weight.grad) for _ in range(replicas)]
    dist.all_gather(counts, torch.tensor([count]), group=group)
    dist.all_gather(gradients, model.weight.grad, group=group)
    model.weight.grad = sum(gradients) / sum(counts)


@right("07.2")
def divided_before_the_sum(model, count, replicas):
    group = column_group(replicas)
    work = dist.all_reduce(total := torch.tensor(count), group=group, async_op=True)
    work.wait()
    model.weight.grad = summed(model.weight.grad / total, group)


@right("07.2")
def a_group_of_its_own_alone(model, count, replicas):
    stages = dist.get_world_size() // replicas
    own = list(range(dist.get_rank() % stages, dist.get_world_size(), stages))
    group = dist.new_group(own, use_local_synchronization=True)
    total = torch.tensor(float(count), dtype=torch.float64)
    dist.all_reduce(model.weight.grad, group=group)
    dist.all_reduce(total, group=group)
    model.weight.grad /= total


@wrong("07.2", says="too small by a factor of the number of replicas", never="once for each stage")
def divided_by_count_and_replicas(model, count, replicas):
    group = column_group(replicas)
    model.weight.grad = summed(model.weight.grad, group) / summed(count, group) / replicas


# 07.3 Clip by the norm of the whole


def gradients_of(model):
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def squares_of(model):
    return sum((gradient.square().sum() for gradient in gradients_of(model)), start=torch.zeros(()))


def scale(model, norm, limit):
    for gradient in gradients_of(model):
        gradient *= min(1.0, limit / float(norm)) if norm else 1.0
    return norm


@wrong("07.3", says="clipped by its own norm")
def pytorch_on_each_stage(model, limit, row, column):
    return torch.nn.utils.clip_grad_norm_(model.parameters(), limit)


@wrong("07.3", says="Only their *squares* add up")
def sum_of_norms(model, limit, row, column):
    return scale(model, summed(squares_of(model).sqrt(), row), limit)


@wrong("07.3", says="Only their *squares* add up")
def norms_of_parameters_added(model, limit, row, column):
    own = sum((gradient.norm() for gradient in gradients_of(model)), start=torch.zeros(()))
    return scale(model, summed(own, row), limit)


@wrong("07.3", says="the root is missing")
def no_root(model, limit, row, column):
    return scale(model, summed(squares_of(model), row), limit)


@wrong("07.3", says="once for each replica")
def everybody(model, limit, row, column):
    return scale(model, summed(squares_of(model)).sqrt(), limit)


@wrong("07.3", says="You add up over the column")
def same_stage(model, limit, row, column):
    return scale(model, summed(squares_of(model), column).sqrt(), limit)


@wrong("07.3", says="the factor is never above 1")
def always_scaled(model, limit, row, column):
    norm = summed(squares_of(model), row).sqrt()
    for gradient in gradients_of(model):
        gradient.mul_(limit / (norm + 1e-6))
    return norm.item()


@wrong("07.3", says="every single number")
def clip_value(model, limit, row, column):
    norm = summed(squares_of(model), row).sqrt()
    torch.nn.utils.clip_grad_value_(model.parameters(), limit)
    return norm


@wrong("07.3", says="the gradients are unchanged")
def new_tensors(model, limit, row, column):
    norm = summed(squares_of(model), row).sqrt()
    for gradient in gradients_of(model):
        gradient = gradient * (limit / norm).clamp(max=1)
    return norm


@wrong("07.3", says="*after* clipping")
def norm_after(model, limit, row, column):
    scale(model, summed(squares_of(model), row).sqrt(), limit)
    return summed(squares_of(model), row).sqrt().item()


@wrong("07.3", says="a mean over the stages")
def averaged(model, limit, row, column):
    squares = summed(squares_of(model), row) / dist.get_world_size(row)
    return scale(model, squares.sqrt(), limit)


@wrong("07.3", says="the largest of the stages' norms")
def largest(model, limit, row, column):
    norm = squares_of(model).sqrt()
    dist.all_reduce(norm, op=dist.ReduceOp.MAX, group=row)
    return scale(model, norm, limit)


@wrong("07.3", says="by different factors, each by its own norm")
def right_norm_own_factor(model, limit, row, column):
    squares = squares_of(model)
    scale(model, squares.sqrt(), limit)
    return summed(squares, row).sqrt()


@wrong("07.3", says="the result is nan")
def divides_by_zero(model, limit, row, column):
    norm = summed(squares_of(model), row).sqrt()
    for gradient in gradients_of(model):
        gradient /= norm
        gradient *= min(norm, limit)
    return norm


@wrong("07.3", says="whole gradients")
def gathers_gradients(model, limit, row, column):
    everyone = [None] * dist.get_world_size(row)
    dist.all_gather_object(everyone, gradients_of(model), group=row)
    norm = torch.cat([gradient.flatten() for stage in everyone for gradient in stage]).norm()
    return scale(model, norm, limit)


@wrong("07.3", says="will not come")
def only_where_it_is_large(model, limit, row, column):
    squares = squares_of(model)
    if squares.sqrt() > 0.6 * limit:
        squares = summed(squares, row)
    return scale(model, squares.sqrt(), limit)


@wrong("07.3", says="is None")
def returns_nothing(model, limit, row, column):
    scale(model, summed(squares_of(model), row).sqrt(), limit)


@wrong("07.3", says=NEVER_WAITS)
def squares_never_awaited(model, limit, row, column):
    squares = squares_of(model)
    dist.all_reduce(squares, group=row, async_op=True)
    return scale(model, squares.sqrt(), limit)


@right("07.3")
def with_pytorchs_own(model, limit, row, column):
    norm = torch.nn.utils.get_total_norm(gradients_of(model)).float()
    whole = summed(norm**2, row) ** 0.5
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), limit, whole)
    return whole


@right("07.3")
def norms_gathered(model, limit, row, column):
    norms = [torch.zeros(()) for _ in range(dist.get_world_size(row))]
    dist.all_gather(norms, squares_of(model).sqrt(), group=row)
    norm = torch.stack(norms).norm().item()
    if norm > limit:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad * (limit / norm)
    return norm


@right("07.3")
def over_everyone_and_divided(model, limit, row, column):
    squares = summed(squares_of(model).double()) / dist.get_world_size(column)
    return scale(model, squares.sqrt().item(), limit)


@right("07.3")
def number_by_number(model, limit, row, column):
    total = summed(squares_of(model).reshape(1), row)
    norm = float(total) ** 0.5
    for parameter in model.parameters():
        if parameter.grad is not None and norm > limit:
            parameter.grad.div_(norm / limit)
    return torch.tensor(norm)


@right("07.3")
def a_millionth_in_the_divisor(model, limit, row, column):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    squares = sum((gradient.double().square().sum() for gradient in gradients), torch.zeros((), dtype=torch.float64))
    squares = squares.reshape(1)
    dist.all_reduce(squares, group=row)
    norm = squares.sqrt()
    factor = (limit / (norm + 1e-6)).clamp(max=1).item()
    for gradient in gradients:
        gradient *= factor
    return norm.item()


def norm_over(model, row):
    """The norm of the whole model's gradient, and this rank's own gradients."""
    own = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    square = torch.tensor([sum(float(one.double().square().sum()) for one in own)], dtype=torch.float64)
    dist.all_reduce(square, group=row)
    return square.sqrt().item(), own


@wrong("07.3", says="Each parameter's gradient is clipped by its own norm")
def each_parameter_by_itself(model, limit, row, column):
    norm, own = norm_over(model, row)
    for gradient in own:
        gradient.mul_(min(1.0, limit / max(gradient.norm().item(), 1e-9)))
    return norm


@wrong("07.3", says="Some ranks have clipped gradients, and others have theirs as they were")
def only_the_first_stage_clips(model, limit, row, column):
    norm, own = norm_over(model, row)
    if norm > limit and dist.get_rank(row) == 0:
        for gradient in own:
            gradient.mul_(limit / norm)
    return norm


@wrong("07.3", says="A frozen parameter has a gradient after the call")
def zeros_for_frozen_ones(model, limit, row, column):
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    norm, own = norm_over(model, row)
    for gradient in own:
        gradient.mul_(limit / max(norm, limit))
    return norm


@wrong("07.3", says="even on one that contributed nothing", never="clipped by its own norm")
def a_frozen_stage_returns_0(model, limit, row, column):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    own = torch.zeros(1, dtype=torch.float64)
    if gradients:
        own[0] = torch.cat([gradient.flatten() for gradient in gradients]).double().square().sum()
    dist.all_reduce(own, group=row)
    if not gradients:
        return 0.0
    norm = own.sqrt().item()
    if norm > limit:
        for gradient in gradients:
            gradient.mul_(limit / norm)
    return norm


# 07.4 Shard the optimizer


def owners(parameters):
    """The owner of each parameter: the largest first, each to the rank with fewest numbers so far."""
    load, owner = [0] * dist.get_world_size(), {}
    for index in sorted(range(len(parameters)), key=lambda index: -parameters[index].numel()):
        owner[index] = load.index(min(load))
        load[owner[index]] += parameters[index].numel()
    return [owner[index] for index in range(len(parameters))]


def owned(parameters, owner):
    return [p for p, whose in zip(parameters, owner, strict=True) if whose == dist.get_rank()]


def sharded(parameters, make_optimizer, owner=None, reduce=dist.reduce, after=lambda parameter: None, give=True):
    owner = owner or owners(parameters)
    optimizer = make_optimizer(owned(parameters, owner))

    def step():
        for parameter, whose in zip(parameters, owner, strict=True):
            reduce(parameter.grad, whose)
            after(parameter)
        optimizer.step()
        for parameter, whose in zip(parameters, owner, strict=True):
            if give:
                dist.broadcast(parameter.data, whose)

    return step


@wrong("07.4", says="the state of all parameters")
def plain_data_parallelism(parameters, make_optimizer):
    optimizer = make_optimizer(parameters)

    def step():
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
        optimizer.step()

    return step


@wrong("07.4", says="needed by one rank only")
def all_reduce_and_broadcast(parameters, make_optimizer):
    return sharded(parameters, make_optimizer, reduce=lambda gradient, _: dist.all_reduce(gradient))


@wrong("07.4", says="More bytes are sent than needed")
def gathers_all_gradients(parameters, make_optimizer):
    def reduce(gradient, _):
        pieces = [torch.zeros_like(gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, gradient)
        gradient.copy_(sum(pieces))

    return sharded(parameters, make_optimizer, reduce=reduce)


@wrong("07.4", says="The parts are unequal")
def round_robin(parameters, make_optimizer):
    owner = [index % dist.get_world_size() for index in range(len(parameters))]
    return sharded(parameters, make_optimizer, owner)


@wrong("07.4", says="The parts are unequal")
def equally_many_in_a_row(parameters, make_optimizer):
    each = -(-len(parameters) // dist.get_world_size())
    return sharded(parameters, make_optimizer, [index // each for index in range(len(parameters))])


@wrong("07.4", says="the *mean* of the ranks' gradients")
def averaged_gradients(parameters, make_optimizer):
    return sharded(parameters, make_optimizer, after=lambda parameter: parameter.grad.div_(dist.get_world_size()))


@wrong("07.4", says="and the others do not have it")
def never_broadcast(parameters, make_optimizer):
    return sharded(parameters, make_optimizer, give=False)


@wrong("07.4", says="the gradient of one rank alone")
def never_reduced(parameters, make_optimizer):
    return sharded(parameters, make_optimizer, reduce=lambda gradient, _: None)


@wrong("07.4", says="created anew at every step")
def optimizer_of_every_step(parameters, make_optimizer):
    return lambda: sharded(parameters, make_optimizer)()


@wrong("07.4", says="summed once more")
def summed_twice(parameters, make_optimizer):
    def reduce(gradient, whose):
        dist.all_reduce(gradient)
        dist.reduce(gradient, whose)

    return sharded(parameters, make_optimizer, reduce=reduce)


@wrong("07.4", says="no rank owns them")
def forgets_the_tail(parameters, make_optimizer):
    whole = len(parameters) // dist.get_world_size() * dist.get_world_size()
    ours = list(parameters)[:whole]
    return sharded(ours, make_optimizer) if ours else lambda: None


@wrong("07.4", says="The parameters are unchanged")
def updates_copies(parameters, make_optimizer):
    copies = [parameter.detach().clone() for parameter in parameters]
    owner = owners(parameters)
    optimizer = make_optimizer(owned(copies, owner))

    def step():
        for parameter, copy, whose in zip(parameters, copies, owner, strict=True):
            copy.grad = parameter.grad
            dist.reduce(copy.grad, whose)
        optimizer.step()
        for copy, whose in zip(copies, owner, strict=True):
            dist.broadcast(copy, whose)

    return step


@wrong("07.4", says="After the update, every part goes from its owner")
def broadcast_before_the_step(parameters, make_optimizer):
    owner = owners(parameters)
    optimizer = make_optimizer(owned(parameters, owner))

    def step():
        for parameter, whose in zip(parameters, owner, strict=True):
            dist.reduce(parameter.grad, whose)
            dist.broadcast(parameter.data, whose)
        optimizer.step()

    return step


@wrong("07.4", says="in the same order")
def owners_broadcast_alone(parameters, make_optimizer):
    owner = owners(parameters)
    optimizer = make_optimizer(owned(parameters, owner))

    def step():
        for parameter, whose in zip(parameters, owner, strict=True):
            dist.reduce(parameter.grad, whose)
        optimizer.step()
        for parameter in owned(parameters, owner):
            dist.broadcast(parameter.data, dist.get_rank())

    return step


@wrong("07.4", says="return a function?")
def returns_no_function(parameters, make_optimizer):
    sharded(parameters, make_optimizer)


@wrong("07.4", says="Every rank holds the state of all parameters")
def state_in_a_copy(parameters, make_optimizer):
    import copy

    optimizer = copy.deepcopy(make_optimizer(parameters))
    optimizer.tensors = list(parameters)

    def step():
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
        optimizer.step()

    return step


@wrong("07.4", says="Every rank holds the state of all parameters")
def state_put_aside(parameters, make_optimizer):
    optimizer, aside = make_optimizer(parameters), {}

    def step():
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
        optimizer.state = dict(aside)
        optimizer.step()
        aside.update(optimizer.state)
        optimizer.state = {}

    return step


@wrong("07.4", says="not because of `make_optimizer`")
def own_momentum(parameters, make_optimizer):
    """Find out both rates with a number, and keep the speeds in a list."""
    trial = torch.zeros(1)
    optimizer = make_optimizer([trial])
    trial.grad = torch.ones(1)
    optimizer.step()
    rate = -trial.item()
    optimizer.step()
    momentum = -trial.item() / rate - 2
    optimizer.state.clear()
    speeds = [torch.zeros_like(parameter) for parameter in parameters]

    def step():
        with torch.no_grad():
            for parameter, speed in zip(parameters, speeds, strict=True):
                dist.all_reduce(parameter.grad)
                speed.mul_(momentum).add_(parameter.grad)
                parameter.sub_(rate * speed)

    return step


@wrong("07.4", says="Some of the state is on more than one rank")
def all_on_two_of_them(parameters, make_optimizer):
    """The ranks but the last keep everything; the last one keeps its own part, and gets the rest."""
    rank, last, owner = dist.get_rank(), dist.get_world_size() - 1, owners(parameters)
    optimizer = make_optimizer(parameters if rank < last else owned(parameters, owner))

    def step():
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
        optimizer.step()
        for parameter, whose in zip(parameters, owner, strict=True):
            dist.broadcast(parameter.data, whose)

    return step


@wrong("07.4", says=NEVER_WAITS)
def given_and_forgotten(parameters, make_optimizer):
    owner = owners(parameters)
    step = sharded(parameters, make_optimizer, owner, give=False)

    def step_and_give():
        step()
        for parameter, whose in zip(parameters, owner, strict=True):
            dist.broadcast(parameter.data, whose, async_op=True)

    return step_and_give


@right("07.4")
def flat_pieces(parameters, make_optimizer):
    ranks, rank = dist.get_world_size(), dist.get_rank()
    sizes = [parameter.numel() for parameter in parameters]
    piece = -(-sum(sizes) // ranks)
    flat = torch.zeros(piece * ranks)
    mine = flat[rank * piece : (rank + 1) * piece].clone()
    optimizer = None

    def fill(tensors):
        flat[: sum(sizes)] = torch.cat([tensor.detach().flatten() for tensor in tensors])

    def step():
        nonlocal optimizer
        if optimizer is None:
            fill(parameters)
            mine.copy_(flat[rank * piece : (rank + 1) * piece])
            optimizer = make_optimizer([mine])
        fill([parameter.grad for parameter in parameters])
        mine.grad = torch.zeros(piece)
        dist.reduce_scatter(mine.grad, list(flat.split(piece)))
        optimizer.step()
        pieces = [torch.zeros(piece) for _ in range(ranks)]
        dist.all_gather(pieces, mine)
        whole = torch.cat(pieces)[: sum(sizes)]
        for parameter, values in zip(parameters, whole.split(sizes), strict=True):
            parameter.data.copy_(values.view_as(parameter))

    return step


@right("07.4")
def an_optimizer_for_each(parameters, make_optimizer):
    owner = owners(parameters)
    optimizers = {
        index: make_optimizer([parameters[index]]) for index, whose in enumerate(owner) if whose == dist.get_rank()
    }

    def step():
        works = [dist.reduce(p.grad, whose, async_op=True) for p, whose in zip(parameters, owner, strict=True)]
        for index, (work, parameter) in enumerate(zip(works, parameters, strict=True)):
            work.wait()
            if index in optimizers:
                optimizers[index].step()
            dist.broadcast(parameter.detach(), owner[index])

    return step


@right("07.4")
def by_running_total(parameters, make_optimizer):
    total, before, owner = sum(p.numel() for p in parameters), 0, []
    for parameter in parameters:
        owner.append(min(before * dist.get_world_size() // total, dist.get_world_size() - 1))
        before += parameter.numel()
    return sharded(parameters, make_optimizer, owner)


@right("07.4")
def with_messages(parameters, make_optimizer):
    rank, ranks, owner = dist.get_rank(), dist.get_world_size(), owners(parameters)
    optimizer = make_optimizer(owned(parameters, owner))

    def step():
        for parameter, whose in zip(parameters, owner, strict=True):
            if rank != whose:
                dist.send(parameter.grad, whose)
                continue
            for other in range(ranks):
                if other != rank:
                    more = torch.zeros_like(parameter)
                    dist.recv(more, other)
                    parameter.grad += more.detach()
        optimizer.step()
        for parameter, whose in zip(parameters, owner, strict=True):
            dist.broadcast(parameter.data, whose)

    return step


@wrong("07.4", says="or a rank that is not their owner sends them")
def sent_by_another_rank(parameters, make_optimizer):
    owner = owners(parameters)
    optimizer = make_optimizer(owned(parameters, owner))

    def step():
        for parameter, whose in zip(parameters, owner, strict=True):
            dist.reduce(parameter.grad, whose)
        optimizer.step()
        for place, parameter in enumerate(parameters):
            dist.broadcast(parameter.data, place % dist.get_world_size())

    return step
