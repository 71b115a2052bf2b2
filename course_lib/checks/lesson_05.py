"""Exercises of lesson 05, model parallelism: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations, pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Exercise, same_as, seeded

# 05.1 -----------------------------------------------------------------------------------------------------------------

WIDTH = 2


class BatchFirst(nn.Module):
    """A stage as many scripts have it: (sequences, steps, width) in and out."""

    def __init__(self, weights: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True).double()
        with torch.no_grad():
            for parameter, weight in zip(self.lstm.parameters(), weights, strict=False):
                parameter.copy_(weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.lstm(inputs)[0]


def edge_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, ranks: int, sequences: int, steps: int) -> Case:
        def numbers(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        inputs = {
            "weights": [[numbers(*parameter.shape) for parameter in BatchFirst().parameters()] for _ in range(ranks)],
            "batch": numbers(sequences, steps, WIDTH),
            "targets": numbers(sequences, steps, WIDTH),
        }
        return Case(part, ranks, inputs, f"a stage each, {sequences} sequences of {steps} steps")

    return [
        case("one edge", 2, 2, 3),
        case("one edge", 2, 3, 2),
        case("a stage between two others", 3, 2, 3),
    ]


def drive_edge(answer, weights: list[list[Tensor]], batch: Tensor, targets: Tensor):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    stage = BatchFirst(weights[rank])
    loss = partial(nn.functional.mse_loss, target=targets) if rank == last else None
    answer(stage, batch if rank == 0 else None, loss, tuple(batch.shape))
    return {name: parameter.grad for name, parameter in stage.lstm.named_parameters()}


def right_edge(case: Case) -> list[dict]:
    stages = [BatchFirst(weights) for weights in case.inputs["weights"]]
    outputs = nn.Sequential(*stages)(case.inputs["batch"])
    nn.functional.mse_loss(outputs, case.inputs["targets"]).backward()
    return [{name: parameter.grad for name, parameter in stage.lstm.named_parameters()} for stage in stages]


def across(
    stage: nn.Module,
    inputs: Tensor | None,
    loss: Callable | None,
    shape: tuple[int, ...],
    sent: Callable = Tensor.contiguous,
    leaf: Callable = Tensor.requires_grad_,
    start: Callable = Tensor.backward,
    returned: Callable = lambda inputs, outputs: inputs.grad,
) -> None:
    """A right answer; each mistake below does one of the last four things in another way."""
    rank = dist.get_rank()
    if inputs is None:
        inputs = torch.empty(shape, dtype=torch.float64)
        dist.recv(inputs, rank - 1)
        leaf(inputs)
    outputs = stage(inputs)
    outputs.retain_grad()
    if loss is None:
        dist.send(sent(outputs.detach()), rank + 1)
        gradient = torch.empty(shape, dtype=torch.float64)
        dist.recv(gradient, rank + 1)
        start(outputs, gradient)
    else:
        loss(outputs).backward()
    if rank > 0:
        dist.send(returned(inputs, outputs), rank - 1)


def sends_a_view(stage, inputs, loss, shape):
    """A message is a stretch of memory, and the output of a `batch_first` LSTM is a view that is turned around: make it
    contiguous before you send it. The same may hold for a gradient.
    """
    across(stage, inputs, loss, shape, sent=lambda outputs: outputs)


def forgets_the_leaf(stage, inputs, loss, shape):
    """What was received has no gradient: to autograd it is a constant. It must require a gradient *before* the stage
    uses it, and then has one after the backward pass.
    """
    across(stage, inputs, loss, shape, leaf=lambda inputs: inputs)


def nothing_comes_back(stage, inputs, loss, shape):
    """The stages before the last have no gradient at all: nothing was sent back. They would stay as they are, while the
    loss still falls, because the last stage learns to make the best of it.
    """
    rank = dist.get_rank()
    if inputs is None:
        inputs = torch.empty(shape, dtype=torch.float64)
        dist.recv(inputs, rank - 1)
    outputs = stage(inputs)
    if loss is None:
        dist.send(outputs.detach().contiguous(), rank + 1)
    else:
        loss(outputs).backward()


def gradient_of_its_outputs(stage, inputs, loss, shape):
    """What you send back is the derivative of the loss by your *outputs*. The rank before needs the one by what it has
    sent: your inputs.
    """
    across(stage, inputs, loss, shape, returned=lambda inputs, outputs: outputs.grad.contiguous())


def sends_the_activations_back(stage, inputs, loss, shape):
    """You send back the activations that you have received. What must travel is their gradient: `.grad`, after the
    backward pass.
    """
    across(stage, inputs, loss, shape, returned=lambda inputs, outputs: inputs.detach())


def backward_of_the_sum(stage, inputs, loss, shape):
    """You receive a gradient and begin the backward pass without it: `outputs.sum().backward()` is the gradient of
    the outputs' sum. Begin with the one that came: it says how the loss depends on each output.
    """
    across(stage, inputs, loss, shape, start=lambda outputs, gradient: outputs.sum().backward())


def passes_it_on(stage, inputs, loss, shape):
    """Two stages work, and with three the first one's gradient is wrong: the middle stage hands on the gradient that it
    has received. It must first take it back through its own layer.
    """

    def returned(received, outputs):
        return (received.grad if loss else outputs.grad).contiguous()

    across(stage, inputs, loss, shape, returned=returned)


def waits_for_nothing(stage, inputs, loss, shape):
    """A stage waits for a gradient that the next one never sends. After its backward pass, every stage but the first
    sends back the gradient of what it has received.
    """
    rank = dist.get_rank()
    if loss is None:
        across(stage, inputs, loss, shape)
    else:
        dist.recv(torch.empty(shape, dtype=torch.float64), rank - 1)


EDGE = Exercise(
    number="05.1",
    title="Back through the edge",
    answer="train_stage",
    level="exercise",
    minutes=20,
    parts={"one edge": 3, "a stage between two others": 2},
    read="2 · By hand: an edge between two ranks",
    hints=(
        "The way forward first: receive unless there are `inputs`, run the stage, send unless there is a `loss`. What "
        "is sent must be detached and contiguous.",
        "What was received is a leaf of this rank's graph. What must it do, to have a `.grad` later?",
        "`outputs.backward(gradient)` goes on with a gradient that came from elsewhere.",
        "A stage in the middle is both: it receives activations and sends some, receives a gradient and sends one.",
    ),
    cases=edge_cases,
    drive=drive_edge,
    judge=same_as(right_edge),
    mistakes=(
        sends_a_view,
        forgets_the_leaf,
        nothing_comes_back,
        gradient_of_its_outputs,
        sends_the_activations_back,
        backward_of_the_sum,
        passes_it_on,
    ),
    hanging=waits_for_nothing,
)

# 05.2 -----------------------------------------------------------------------------------------------------------------


def place_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, blocks: int, stages: int) -> Case:
        while True:
            seconds, sizes = (torch.randint(1, 12, (blocks,), generator=generator).tolist() for _ in range(2))
            memory = memory_for(part, seconds, sizes, stages)
            if memory and is_telling(part, seconds, sizes, stages, memory):
                break
        inputs = {"seconds": seconds, "sizes": sizes, "stages": stages, "memory": memory}
        return Case(part, 1, inputs, f"{stages} stages, {seconds=}, {sizes=}, {memory=}")

    return [
        case("the fastest", 6, 3),
        case("the fastest", 8, 4),
        case("a limit on memory", 6, 3),
        case("nothing fits", 6, 3),
    ]


def memory_for(part: str, seconds: list[int], sizes: list[int], stages: int) -> int | None:
    """More than enough; less than the fastest placement needs, and enough for another; or too little for any."""
    if part == "the fastest":
        return sum(sizes)
    least, needed = (largest(sizes, fastest(values, values, stages, sum(values))) for values in (sizes, seconds))
    if part == "nothing fits":
        return least - 1 if least > max(sizes) else None
    return needed - 1 if least < needed else None


def is_telling(part: str, *inputs) -> bool:
    """Whether the mistakes of this part show, each in its own way."""
    mistakes = {"the fastest": UNLIMITED, "a limit on memory": LIMITED, "nothing fits": (never_gives_up,)}[part]
    answers = [mistake(*inputs) for mistake in mistakes]
    return len(set(map(str, answers))) == len(answers) and all(wrong_placement(each, *inputs) for each in answers)


def drive_place(answer, seconds: list[int], sizes: list[int], stages: int, memory: int):
    return answer(seconds, sizes, stages, memory)


def judge_place(case: Case, values: list) -> str | None:
    return wrong_placement(values[0], **case.inputs)


def wrong_placement(parts, seconds: list[int], sizes: list[int], stages: int, memory: int) -> str | None:
    best = fastest(seconds, sizes, stages, memory)
    if parts is None or best is None:
        return None if parts is best else f"it is {parts}, it should be {best and 'a placement: there is one'}"
    blocks = [block for part in parts for block in part]
    if sorted(blocks) != list(range(len(seconds))):
        return f"{parts}: every block from 0 to {len(seconds) - 1} must be in it once"
    if blocks != sorted(blocks):
        return f"{parts}: the blocks of a stage must be consecutive, and the stages in order"
    if len(parts) != stages or not all(parts):
        return f"{parts}: there must be {stages} stages, each with a block"
    if largest(sizes, parts) > memory:
        return f"{parts}: a stage needs {largest(sizes, parts)} of memory, and has {memory}"
    if largest(seconds, parts) > largest(seconds, best):
        pace = f"its slowest stage takes {largest(seconds, parts)}"
        return f"{parts}: {pace}, there is a placement with {largest(seconds, best)}"
    return None


Parts = list[list[int]]


def largest(values: list[int], parts: Parts) -> int:
    return max(sum(values[block] for block in part) for part in parts)


def all_parts(blocks: int, stages: int) -> list[Parts]:
    """Every way to cut the blocks into consecutive parts."""
    cuts = ((0, *chosen, blocks) for chosen in combinations(range(1, blocks), stages - 1))
    return [[list(range(start, stop)) for start, stop in pairwise(bounds)] for bounds in cuts]


def fastest(seconds: list[int], sizes: list[int], stages: int, memory: int) -> Parts | None:
    fitting = [parts for parts in all_parts(len(seconds), stages) if largest(sizes, parts) <= memory]
    return min(fitting, key=partial(largest, seconds), default=None)


def filled(values: list[int], stages: int, is_full: Callable[[list[int]], bool]) -> Parts:
    """Block after block on a stage until `is_full`; one block at least is left for each stage that follows."""
    parts: Parts = [[]]
    for block in range(len(values)):
        must = len(values) - block <= stages - len(parts)
        if parts[-1] and len(parts) < stages and (must or is_full([values[b] for b in [*parts[-1], block]])):
            parts.append([])
        parts[-1].append(block)
    return parts


def in_turn(seconds, sizes, stages, memory):
    """Dealt out in turn, neighbours live on different stages, and the activations change stages at every block. Give
    each stage consecutive blocks.
    """
    return [list(range(stage, len(seconds), stages)) for stage in range(stages)]


def packed_by_time(seconds, sizes, stages, memory):
    """Well balanced, but the stages' blocks are not consecutive: activations would go back and forth between stages.
    A stage must be one stretch of the model; only the cuts are yours to choose.
    """
    parts: Parts = [[] for _ in range(stages)]
    for block in sorted(range(len(seconds)), key=lambda block: -seconds[block]):
        min(parts, key=lambda part: sum(seconds[b] for b in part)).append(block)
    return [sorted(part) for part in parts]


def equally_many(seconds, sizes, stages, memory):
    """Equally many blocks on each stage is equal work only if the blocks are alike. Balance their seconds."""
    each, extra = divmod(len(seconds), stages)
    bounds = [stage * each + min(stage, extra) for stage in range(stages + 1)]
    return [list(range(start, stop)) for start, stop in pairwise(bounds)]


def filled_to_the_mean(seconds, sizes, stages, memory):
    """You fill each stage up to its fair share of the seconds and go on. What is left over piles up on the last stage:
    a choice that is good for one stage can be bad for the next ones. Compare whole placements.
    """
    share = sum(seconds) / stages
    return filled(seconds, stages, lambda values: sum(values[:-1]) >= share)


def filled_to_the_limit(seconds, sizes, stages, memory):
    """You fill each stage until its memory is full. Memory is a limit; what should be small is the time of the slowest
    stage.
    """
    return filled(sizes, stages, lambda values: sum(values) > memory)


def balanced_in_memory(seconds, sizes, stages, memory):
    """This makes the largest stage as small as can be. Memory only has to fit: of all placements that fit, the fastest
    is asked for.
    """
    return fastest(sizes, seconds, stages, sum(seconds))


def ignores_the_memory(seconds, sizes, stages, memory):
    """The fastest placement, and a stage of it does not fit. Leave out the placements that do not fit before you
    choose.
    """
    return fastest(seconds, sizes, stages, sum(sizes))


def moves_what_does_not_fit(seconds, sizes, stages, memory):
    """You start from the fastest placement and push on what does not fit. The placement that fits is not always near
    the fastest one, and the last stage has nobody to push to: choose among all placements that fit.
    """
    parts = fastest(seconds, sizes, stages, sum(sizes))
    for part, after in pairwise(parts):
        while len(part) > 1 and sum(sizes[block] for block in part) > memory:
            after.insert(0, part.pop())
    return parts


def never_gives_up(seconds, sizes, stages, memory):
    """Here no placement fits, and you return one all the same: the job would run out of memory in its first step.
    Return None.
    """
    return fastest(seconds, sizes, stages, memory) or fastest(sizes, seconds, stages, sum(seconds))


def gives_up_too_soon(seconds, sizes, stages, memory):
    """There are placements that fit, and you return None: that the *fastest* does not fit does not mean that none
    does.
    """
    parts = fastest(seconds, sizes, stages, sum(sizes))
    return parts if largest(sizes, parts) <= memory else None


UNLIMITED = (in_turn, packed_by_time, equally_many, filled_to_the_mean, filled_to_the_limit, balanced_in_memory)
LIMITED = (ignores_the_memory, moves_what_does_not_fit, gives_up_too_soon)

PLACE = Exercise(
    number="05.2",
    title="Place the blocks",
    answer="place",
    level="exercise",
    minutes=20,
    parts={"the fastest": 2, "a limit on memory": 2, "nothing fits": 1},
    read="3 · Placement: which block lives where",
    hints=(
        "A placement in consecutive parts is decided by where it is cut. How many ways are there to cut 6 blocks in 3?",
        "So few that you can try them all: `itertools.combinations(range(1, blocks), stages - 1)` gives the cuts.",
        "First leave out what does not fit, then take the one whose slowest stage is fastest: `min(..., default=None)`",
    ),
    cases=place_cases,
    drive=drive_place,
    judge=judge_place,
    mistakes=(*UNLIMITED, *LIMITED, never_gives_up),
)

# 05.3 -----------------------------------------------------------------------------------------------------------------

GATES = 4


def cell_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, ranks: int, hidden: int, steps: int) -> Case:
        shapes = {"weight_ih": (GATES * hidden, 2), "weight_hh": (GATES * hidden, hidden), "bias": (GATES * hidden,)}
        shapes["inputs"] = (steps, 2, 2)
        inputs = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
        says = f"{hidden} hidden units, {steps} step{'s' * (steps > 1)}"
        return Case(part, ranks, inputs, says)

    return [
        case("one step", 2, 2, 1),
        case("one step", 2, 4, 1),
        case("from step to step", 2, 4, 3),
        case("from step to step", 3, 6, 2),
    ]


def drive_cell(answer, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor, inputs: Tensor):
    hidden = len(bias) // GATES
    owner = torch.arange(len(bias)) % hidden // (hidden // dist.get_world_size())
    others = owner != dist.get_rank()
    for whole in (weight_ih, weight_hh, bias):
        whole[others] = 0
    outputs, c = answer(weight_ih, weight_hh, bias, inputs)
    return {"outputs": outputs, "c": c}


def right_cell(case: Case) -> list[dict]:
    weight_ih, weight_hh, bias, inputs = case.inputs.values()
    h = c = torch.zeros(inputs.shape[1], len(bias) // GATES, dtype=torch.float64)
    outputs = []
    for step in inputs:
        h, c = cell(step @ weight_ih.T + h @ weight_hh.T + bias, c)
        outputs.append(h)
    return [{"outputs": torch.stack(outputs), "c": own} for own in c.chunk(case.ranks, dim=1)]


def cell(gates: Tensor, c: Tensor, order: str = "ifgo") -> tuple[Tensor, Tensor]:
    """The next (h, c) of the units whose gates these are."""
    named = dict(zip(order, gates.chunk(GATES, dim=1), strict=True))
    c = named["f"].sigmoid() * c + named["i"].sigmoid() * named["g"].tanh()
    return named["o"].sigmoid() * c.tanh(), c


def rows_of(whole: Tensor) -> Tensor:
    """Of each gate's rows, this rank's."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    return torch.cat([gate.chunk(ranks)[rank] for gate in whole.chunk(GATES)])


def put_together(part: Tensor) -> Tensor:
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part.contiguous())
    return torch.cat(parts, dim=1)


def own_part_only(part: Tensor) -> Tensor:
    """(sequences, hidden) with this rank's units in their place, and zeros for the others."""
    return torch.cat([part if rank == dist.get_rank() else 0 * part for rank in range(dist.get_world_size())], dim=1)


def cut_layer(weight_ih, weight_hh, bias, inputs, own=rows_of, order="ifgo", carried=put_together):
    """A right answer; each mistake below does one of the last three things, or what follows, in another way."""
    weight_ih, weight_hh, bias = own(weight_ih), own(weight_hh), own(bias)
    c = torch.zeros(inputs.shape[1], len(bias) // GATES, dtype=torch.float64)
    h, outputs = carried(c), []
    for step in inputs:
        part, c = cell(step @ weight_ih.T + h @ weight_hh.T + bias, c, order)
        h = carried(part)
        outputs.append(put_together(part))
    return torch.stack(outputs), c


def one_stretch_of_rows(weight_ih, weight_hh, bias, inputs):
    """You cut the 4 x hidden rows into one stretch per rank. The gates lie one below the other, so that a rank gets one
    gate of all units, or two, instead of all four gates of its own units. Cut *each gate's* rows.
    """

    def own(whole):
        return whole.chunk(dist.get_world_size())[dist.get_rank()]

    return cut_layer(weight_ih, weight_hh, bias, inputs, own=own)


def gathers_at_the_end(weight_ih, weight_hh, bias, inputs):
    """The first step is right. At the next one, each rank's gates know only the h of its own units. They need all of
    it: gather after *every* step.
    """
    return cut_layer(weight_ih, weight_hh, bias, inputs, carried=own_part_only)


def adds_the_parts(weight_ih, weight_hh, bias, inputs):
    """You add up the ranks' h with an all-reduce: units that have nothing to do with each other are mixed. Each rank
    has *other units*: put them side by side.
    """

    def added(part):
        total = part.clone()
        dist.all_reduce(total)
        return torch.cat([total] * dist.get_world_size(), dim=1)

    outputs, c = cut_layer(weight_ih, weight_hh, bias, inputs, carried=added)
    return torch.stack([added(step) for step in outputs.chunk(dist.get_world_size(), 2)[dist.get_rank()]]), c


def stacks_the_parts(weight_ih, weight_hh, bias, inputs):
    """The parts are put one below the other, as if the ranks had other sequences. They have other *units* of the same
    sequences: the dimension to join is the last one.
    """
    outputs, c = cut_layer(weight_ih, weight_hh, bias, inputs)
    return torch.cat(outputs.chunk(dist.get_world_size(), 2), dim=1), c


def gates_of_another_library(weight_ih, weight_hh, bias, inputs):
    """Your gates are in the order i, g, f, o, as some libraries store them. PyTorch's rows are i, f, g, o."""
    return cut_layer(weight_ih, weight_hh, bias, inputs, order="igfo")


def gathers_c_too(weight_ih, weight_hh, bias, inputs):
    """You return all of c. A unit's c is used by that unit alone: each rank keeps its own, and nobody has to send it.
    That is half of the state that never travels.
    """
    outputs, c = cut_layer(weight_ih, weight_hh, bias, inputs)
    return outputs, put_together(c)


def computes_all_units(weight_ih, weight_hh, bias, inputs):
    """You compute the gates of all units, with the rows of those that this rank does not have: they are zero here, and
    on a real rank they are not there at all. Compute your own units, and get the others' h from their ranks.
    """
    outputs, c = cut_layer(weight_ih, weight_hh, bias, inputs, own=lambda whole: whole, carried=lambda part: part)
    return outputs[:, :, : c.shape[1]], c.chunk(dist.get_world_size(), 1)[dist.get_rank()]


CELL = Exercise(
    number="05.3",
    title="Cut inside the cell",
    answer="run_layer",
    level="build",
    minutes=30,
    parts={"one step": 3, "from step to step": 3},
    read="6 · Inside the cell: tensor parallelism",
    hints=(
        "Which rows belong to hidden unit 0? There are four of them: rows 0, hidden, 2 x hidden and 3 x hidden.",
        "`whole.chunk(4)` gives the four gates; of each, take the rows of your units; `torch.cat` puts them together.",
        "With its own rows a rank computes the four gates, c and h of its own units. What does `h @ weight_hh.T` need "
        "at the next step?",
        "`dist.all_gather(parts, own)` fills a list with one tensor per rank. Units are the last dimension.",
    ),
    cases=cell_cases,
    drive=drive_cell,
    judge=same_as(right_cell),
    mistakes=(
        one_stretch_of_rows,
        gathers_at_the_end,
        adds_the_parts,
        stacks_the_parts,
        gates_of_another_library,
        gathers_c_too,
        computes_all_units,
    ),
)

EXERCISES = (EDGE, PLACE, CELL)
