"""12.1 Cut an MLP by column and row: the check, and the common mistakes it recognizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from course_lib.checks.exercise import Case, Exercise, differs, seeded
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import observed

NAMES = ("up", "up_bias", "down", "down_bias")


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, ranks: int, width: int, columns: int) -> Case:
        shapes = {
            "up": (columns, width),
            "up_bias": (columns,),
            "down": (width, columns),
            "down_bias": (width,),
            "inputs": (4, width),
        }
        tensors = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
        return Case(
            part,
            1,
            {"ranks": ranks, **tensors},
            f"{width} inputs, {columns} columns, on {ranks} rank{'s' * (ranks > 1)}",
        )

    return [
        case("equal parts", 2, 2, 4),
        case("equal parts", 1, 3, 5),
        case("equal parts", 2, 4, 4),
        case("equal parts", 4, 3, 12),
        case("what is left over", 2, 2, 5),
        case("what is left over", 4, 2, 5),
        case("what is left over", 4, 3, 10),
        case("what is left over", 3, 5, 8),
    ]


def drive(answer, ranks: int, inputs: Tensor, **weights: Tensor):
    """Return every rank's part, and whether the whole weights are unchanged."""
    given = [weights[name] for name in NAMES]
    before = [tensor.clone() for tensor in given]
    parts = [[tensor_of(each, rank) for each in answer(*given, rank, ranks)] for rank in range(ranks)]
    return {"parts": parts, "unchanged": all(torch.equal(a, b) for a, b in zip(before, given, strict=True))}


def tensor_of(returned: Any, rank: int) -> Tensor:
    """Return a copy of what a rank returned. Raises TypeError if it is None."""
    if returned is None:
        raise TypeError(f"rank {rank} returned None where a tensor should be; to add nothing to the sum, return zeros")
    return torch.as_tensor(returned).clone()


def whole(case: Case) -> Tensor:
    up, up_bias, down, down_bias = (case.inputs[name] for name in NAMES)
    return functional.gelu(case.inputs["inputs"] @ up.T + up_bias) @ down.T + down_bias


def outputs_of(case: Case, part: list[Tensor]) -> Tensor:
    """Return one rank's part of the outputs. Raises RuntimeError if the shapes don't match."""
    up, up_bias, down, down_bias = part
    return functional.gelu(functional.linear(case.inputs["inputs"], up, up_bias)) @ down.T + down_bias


def added_up(case: Case, values: list) -> Tensor | None:
    """Return the sum of the ranks' outputs, or None if a part's shapes don't fit."""
    if shape_trouble(case, values):
        return None
    return torch.stack([outputs_of(case, part) for part in values[0]["parts"]]).sum(0)


def shape_trouble(case: Case, values: list) -> str | None:
    width = case.inputs["up"].shape[1]
    for rank, part in enumerate(values[0]["parts"]):
        if len(part) != len(NAMES):
            return f"rank {rank}: there are {len(part)} tensors, there should be {len(NAMES)}: {', '.join(NAMES)}"
        own = part[0].shape[0] if part[0].dim() else 0
        for name, tensor, shape in zip(NAMES, part, ((own, width), (own,), (width, own), (width,)), strict=True):
            if tuple(tensor.shape) != shape:
                return f"rank {rank}: {name} has shape {tuple(tensor.shape)}, it should have {shape}"
    return None


def judge(case: Case, values: list) -> str | None:
    if trouble := shape_trouble(case, values):
        return trouble
    most = -(-case.inputs["up"].shape[0] // case.inputs["ranks"])
    for rank, part in enumerate(values[0]["parts"]):
        if len(part[0]) > most:
            return f"rank {rank}: has {len(part[0])} columns, it should have at most {most}"
    if difference := differs(added_up(case, values), whole(case), "the sum of the ranks' outputs"):
        return difference
    return None if values[0]["unchanged"] else "the weights that you were given have changed"


def _columns(values: list) -> list[int]:
    return [len(part[0]) if part and part[0].dim() else -1 for part in values[0]["parts"]]


@observed
def transposes_a_weight(case: Case, values: list) -> bool:
    """The numbers are right, but a weight is transposed. Return `up` as (columns, width) and `down` as (width,
    columns), as they were given, with fewer columns.
    """
    for place in (0, 2):
        parts = [[part[n].T if n == place else part[n] for n in range(len(NAMES))] for part in values[0]["parts"]]
        if all(part[place].dim() == 2 for part in parts) and judge(case, [values[0] | {"parts": parts}]) is None:
            return judge(case, values) is not None
    return False


@observed
def not_cut(case: Case, values: list) -> bool:
    """Every rank has all columns: nothing is saved, and every rank computes everything. Give each rank its share."""
    return case.inputs["ranks"] > 1 and all(own == case.inputs["up"].shape[0] for own in _columns(values))


@observed
def cuts_up_along_its_inputs(case: Case, values: list) -> bool:
    """You cut `up` along its inputs. Then XA is a sum over the ranks that is needed *before* gelu, which takes one more
    message. Cut `up` along its outputs: they are the rows of PyTorch's weight, (columns, width).
    """
    width = case.inputs["up"].shape[1]
    return any(part and part[0].dim() == 2 and part[0].shape[1] < width for part in values[0]["parts"])


@observed
def keeps_all_of_up_bias(case: Case, values: list) -> bool:
    """`up` is cut and `up_bias` is not: each column has one number of the bias, so cut it the same way."""
    columns = case.inputs["up"].shape[0]
    return any(
        len(part) == len(NAMES) and len(part[0]) < columns and part[1].numel() == columns for part in values[0]["parts"]
    )


@observed
def cuts_down_along_its_outputs(case: Case, values: list) -> bool:
    """You cut `down` along its outputs. A rank has only its own columns of gelu(XA), so it needs the weights of those
    *inputs* of `down`: dimension 1 of PyTorch's weight, (width, columns).
    """
    width, columns = case.inputs["down"].shape
    return any(
        len(part) == len(NAMES) and part[2].shape[0] < width and part[2].shape[1] == columns
        for part in values[0]["parts"]
    )


@observed
def cuts_down_bias(case: Case, values: list) -> bool:
    """You cut `down_bias`. Its numbers belong to the outputs, and every rank's part of the sum has all of them: give
    the whole bias to one rank, and zeros to the others.
    """
    whole = case.inputs["down_bias"]
    parts = [part[3] for part in values[0]["parts"]]
    return all(part.dim() == 1 and len(part) < len(whole) and bool(torch.isin(part, whole).all()) for part in parts)


@observed
def has_too_short_a_bias(case: Case, values: list) -> bool:
    """A rank's `down_bias` has fewer numbers than the outputs. On one rank it is the whole bias, and on the others as
    many zeros: `torch.zeros_like(down_bias)`.
    """
    width = case.inputs["up"].shape[1]
    return any(len(part) == len(NAMES) and part[3].numel() < width for part in values[0]["parts"])


def _has(case: Case, values: list, off: Tensor) -> bool:
    """Return whether the outputs add up to the right ones plus `off`."""
    found = added_up(case, values)
    return found is not None and differs(found, whole(case) + off) is None


def adds_the_bias_on_every_rank(case: Case, values: list) -> bool:
    """The ranks' outputs are summed, and each of them has all of `down_bias`: it is added once per rank. Give it to one
    rank, and zeros to the others.
    """
    ranks = case.inputs["ranks"]
    return ranks > 1 and _has(case, values, (ranks - 1) * case.inputs["down_bias"])


def has_no_bias(case: Case, values: list) -> bool:
    """`down_bias` is missing from the sum: one rank must have it."""
    return _has(case, values, -case.inputs["down_bias"])


def has_a_part_of_the_bias(case: Case, values: list) -> bool:
    """A part of `down_bias` is missing from the sum: the part of the ranks which have no columns. Such a rank still
    takes part in the sum, and must return its part of the bias.
    """
    ranks = case.inputs["ranks"]
    empty = _columns(values).count(0)
    return empty > 0 and _has(case, values, -empty / ranks * case.inputs["down_bias"])


@observed
def has_too_many_on_one(case: Case, values: list) -> bool:
    """One rank has more columns than it needs to, and all others wait for it: spread what is left over across several
    ranks, one column each, as `torch.tensor_split` does.
    """
    most = -(-case.inputs["up"].shape[0] // case.inputs["ranks"])
    found = _columns(values)
    return shape_trouble(case, values) is None and sum(found) == case.inputs["up"].shape[0] and max(found) > most


@observed
def drops_what_is_left_over(case: Case, values: list) -> bool:
    """Some columns are on no rank: the number of ranks does not divide the number of columns. Give the first ranks one
    more, as `torch.tensor_split` does.
    """
    found = _columns(values)
    return shape_trouble(case, values) is None and sum(found) < case.inputs["up"].shape[0]


@observed
def has_columns_twice(case: Case, values: list) -> bool:
    """Together the ranks have more columns than there are: some are on two ranks, and are added twice."""
    found = _columns(values)
    return shape_trouble(case, values) is None and sum(found) > case.inputs["up"].shape[0]


def _same_rows(ours: list[Tensor], theirs: Tensor) -> bool:
    rows = torch.cat(ours)
    return rows.shape == theirs.shape and bool((rows[:, None] == theirs[None]).all(-1).any(1).all())


@observed
def other_rows_than_columns(case: Case, values: list) -> bool:
    """Every column of `up` and of `down` is on some rank, but not on the same one: column j of `up` feeds column j of
    `down`'s weight, so a rank needs both. Cut both with the same indices.
    """
    if added_up(case, values) is None:
        return False
    parts = values[0]["parts"]
    complete = _same_rows([part[0] for part in parts], case.inputs["up"]) and _same_rows(
        [part[2].T for part in parts], case.inputs["down"].T
    )
    pairs = torch.cat([case.inputs["up"], case.inputs["down"].T], dim=1)
    return complete and not _same_rows([torch.cat([part[0], part[2].T], dim=1) for part in parts], pairs)


@observed
def changes_the_weights(case: Case, values: list) -> bool:
    """You change the weights that you were given, in place: whoever uses them next gets different values. Slices are
    enough; make new tensors for anything else.
    """
    return not values[0]["unchanged"]


SYMPTOMS: tuple[Any, ...] = (
    changes_the_weights,
    transposes_a_weight,
    cuts_up_along_its_inputs,
    not_cut,
    keeps_all_of_up_bias,
    cuts_down_along_its_outputs,
    cuts_down_bias,
    has_too_short_a_bias,
    has_too_many_on_one,
    drops_what_is_left_over,
    has_columns_twice,
    adds_the_bias_on_every_rank,
    has_no_bias,
    has_a_part_of_the_bias,
    other_rows_than_columns,
)

EXERCISE = Exercise(
    **texts("12.1"),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=SYMPTOMS,
)
