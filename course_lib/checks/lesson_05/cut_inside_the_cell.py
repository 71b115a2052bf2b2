"""05.3 Cut inside the cell: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, same_as, seeded

GATES = 4


def cases(seed: int) -> list[Case]:
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


def drive(answer, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor, inputs: Tensor):
    hidden = len(bias) // GATES
    owner = torch.arange(len(bias)) % hidden // (hidden // dist.get_world_size())
    others = owner != dist.get_rank()
    for whole in (weight_ih, weight_hh, bias):
        whole[others] = 0
    outputs, c = answer(weight_ih, weight_hh, bias, inputs)
    return {"outputs": outputs, "c": c}


def expected(case: Case) -> list[dict]:
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


EXERCISE = Exercise(
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
    cases=cases,
    drive=drive,
    judge=same_as(expected),
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
