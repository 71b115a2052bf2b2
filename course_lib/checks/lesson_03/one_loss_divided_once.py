"""03.2 One loss, divided once: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, differs, seeded


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, lengths: list[list[int]], padding: float, says: str) -> Case:
        steps, sequences = max(map(max, lengths)), len(lengths[0])
        slopes = torch.randn(len(lengths), steps, sequences, generator=generator, dtype=torch.float64)
        mask = torch.arange(steps).view(1, -1, 1) < torch.tensor(lengths).unsqueeze(1)
        rest = torch.rand(slopes.shape, generator=generator, dtype=torch.float64).masked_fill(~mask, padding)
        return Case(part, len(lengths), {"slopes": slopes, "rest": rest, "mask": mask}, says)

    return [
        case("uneven counts", [[2, 1], [1, 2]], 0.5, "3 steps that count on each, and 1 of padding"),
        case("uneven counts", [[4, 3], [1, 1]], 0.5, "7 steps that count on rank 0, 2 on rank 1"),
        case("anything in the padding", [[2, 1], [2, 2]], float("nan"), "nan in the one cell of padding"),
        case("an empty share", [[2, 3], [0, 0], [1, 2]], 0.5, "no step that counts on rank 1"),
    ]


def drive(answer, slopes: Tensor, rest: Tensor, mask: Tensor):
    rank = dist.get_rank()
    weight = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    loss = answer(weight * slopes[rank] + rest[rank], mask[rank])
    loss.backward()
    return {"losses": loss, "gradients": weight.grad}


def judge(case: Case, values: list) -> str | None:
    slopes, rest, mask = (case.inputs[name] for name in ("slopes", "rest", "mask"))
    right = {"gradients": slopes[mask].mean(), "losses": (2 * slopes + rest)[mask].mean()}
    for name, whole in right.items():
        mean = torch.stack([value[name] for value in values]).mean()
        difference = differs(mean, whole, name=f"the mean of the ranks' {name}")
        if difference:
            return difference
    return None


def own_mean(losses, mask):
    """Each rank divides by its own count: the mean of means. A step on a rank with few of them weighs more than one on
    a rank with many. Divide by the count of all ranks.
    """
    return losses[mask].sum() / mask.sum().clamp(min=1)


def counts_the_padding(losses, mask):
    """You divide by all cells, padding included: the more padding, the smaller the gradient. Only the steps that count
    are counted, `mask.sum()`.
    """
    count = torch.tensor(mask.numel())
    dist.all_reduce(count)
    return losses[mask].sum() * dist.get_world_size() / count


def adds_the_padding(losses, mask):
    """The count is right, but the sum has the padding in it: its losses are numbers like all others. Take the sum over
    the mask.
    """
    count = mask.sum()
    dist.all_reduce(count)
    return losses.sum() * dist.get_world_size() / count


def forgets_the_ranks(losses, mask):
    """The gradient is too small by the number of ranks: you divide by the count of all ranks, and then the mean over
    the ranks divides once more. Multiply to make up for it.
    """
    count = mask.sum()
    dist.all_reduce(count)
    return losses[mask].sum() / count


def never_divides(losses, mask):
    """A sum of losses grows with the batch, and the step with it. Divide by the number of steps that count, on all
    ranks.
    """
    return losses[mask].sum()


def makes_a_new_tensor(losses, mask):
    """The value may be right, but `backward()` finds no way from it to the weights: it went through `item()` or
    `torch.tensor`. Only counts may leave the graph; the sum of losses stays in it.
    """
    count = mask.sum()
    dist.all_reduce(count)
    return torch.tensor(losses[mask].sum().item() * dist.get_world_size() / count.item())


def multiplies_by_the_mask(losses, mask):
    """Zero times nan is nan: one bad cell of padding spoils the sum, though the mask is 0 there. Choose the steps that
    count, `losses[mask]`, instead of multiplying the others away.
    """
    count = mask.sum()
    dist.all_reduce(count)
    return (losses * mask).sum() * dist.get_world_size() / count


def skips_when_empty(losses, mask):
    """A rank whose share is empty leaves before the all-reduce, and the others wait for it for ever. It has something
    to say, too: that its count is 0.
    """
    if not mask.any():
        return losses.sum() * 0
    count = mask.sum()
    dist.all_reduce(count)
    return losses[mask].sum() * dist.get_world_size() / count


EXERCISE = Exercise(
    number="03.2",
    title="One loss, divided once",
    answer="share_of_loss",
    level="exercise",
    minutes=15,
    parts={"uneven counts": 2, "anything in the padding": 1, "an empty share": 1},
    read="3 · The mean of means",
    hints=(
        "Write down the gradient of one process: the sum over all ranks' steps, divided by what? Which part of it does "
        "a rank not know?",
        "The count is a number without a gradient: all-reduce it. The sum of losses needs no message, the gradients "
        "travel later.",
        "Afterwards the gradients are averaged, which divides by the number of ranks. You must have multiplied by it.",
    ),
    cases=cases,
    drive=drive,
    judge=judge,
    mistakes=(
        own_mean,
        counts_the_padding,
        adds_the_padding,
        forgets_the_ranks,
        never_divides,
        makes_a_new_tensor,
        multiplies_by_the_mask,
    ),
    hanging=skips_when_empty,
)
