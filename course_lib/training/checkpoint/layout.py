"""Who has what of a model, as a checkpoint remembers it; and whether a run fits a checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from course_lib.strategies import Strategy
from course_lib.strategies.registry import check_is_strategy
from course_lib.strategies.shards import Outlines, check_outlines, gather_outlines
from course_lib.training.checkpoint.folder import Checkpoint, CheckpointError


def parts_of(strategy: Strategy, sampled: bool = False) -> list[Outlines]:
    """Who has what of the model, seen to be the whole of it; the same on every rank."""
    check_is_strategy(strategy)
    parts = gather_outlines(strategy.checked_shards(), sampled=sampled)
    check_outlines(parts)
    return parts


def parameters_of(parts: list[Outlines]) -> dict[str, list]:
    """Shape and dtype of the whole model's parameters."""
    outlines = {name: outline for part in parts for name, outline in part.items()}
    return {name: [list(outline.shape), outline.dtype] for name, outline in sorted(outlines.items())}


def layout_of(strategy: Strategy, parts: list[Outlines]) -> dict[str, Any]:
    """Who has what. On the same layout a rank finds its own random numbers and carried states again."""
    layout = {
        "strategy": type(strategy).__name__,
        "ranks": len(parts),
        "micro_batches": strategy.micro_batches,
        "parts": [
            {name: [outline.copy, [str(box) for box in outline.boxes]] for name, outline in part.items()}
            for part in parts
        ],
    }
    return json.loads(json.dumps(layout))  # as it will be read: lists, no tuples


def is_same_layout(checkpoint: Checkpoint, strategy: Strategy) -> bool:
    """Whether each rank has what it had when the checkpoint was saved; for all ranks to call."""
    return checkpoint.layout == layout_of(strategy, parts_of(strategy))


def in_words(layout: Mapping[str, Any]) -> str:
    """The layout as a person says it."""
    ranks = "1 rank" if layout["ranks"] == 1 else f"{layout['ranks']} ranks"
    pieces = f" in {layout['micro_batches']} micro-batches" if layout["micro_batches"] > 1 else ""
    return f"{layout['strategy']} on {ranks}{pieces}"


def check_same_model(checkpoint: Checkpoint, ours: dict[str, list]) -> None:
    """Refuse a checkpoint whose parameters have other names, shapes or types than ours."""
    theirs = checkpoint.parameters
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            raise CheckpointError(
                f"{checkpoint.path} is of another model: it has {_describe(name, theirs)}, and this one has "
                f"{_describe(name, ours)}. {_advice(theirs.get(name), ours.get(name))}"
            )


def check_same_optimizer(checkpoint: Checkpoint, strategy: Strategy) -> None:
    """Refuse a checkpoint of an optimizer that keeps other numbers."""
    ours = type(strategy.optimizer).__name__
    if checkpoint.optimizer not in ("", ours):
        raise CheckpointError(
            f"{checkpoint.path} was saved with {checkpoint.optimizer}, and this run has {ours}, which keeps other "
            "numbers: go on with the same optimizer"
        )


def check_same_slots(checkpoint: Checkpoint, saved: Iterable[str], strategy: Strategy) -> None:
    """Refuse a checkpoint of the same optimizer with options that make it keep other numbers: amsgrad, momentum."""
    theirs = {key.rpartition(".")[2] for key in saved if re.match(r"(copy-[^.]+\.)?optimizer\.", key)}
    ours = _slots_of(strategy.optimizer)
    if not theirs or ours is None or theirs == ours:
        return
    name = type(strategy.optimizer).__name__
    raise CheckpointError(
        f"{checkpoint.path} was saved with {name} keeping {_listed(theirs)} for each parameter, and in this run it "
        f"keeps {_listed(ours)}: give the optimizer the same options"
    )


def _slots_of(optimizer: Optimizer) -> set[str] | None:
    """What an optimizer keeps for a parameter, found out on one of its own; None where that cannot be known."""
    try:
        parameter = torch.nn.Parameter(torch.zeros(1, 1))
        trial = type(optimizer)([parameter], **optimizer.defaults)
        parameter.grad = torch.zeros_like(parameter)
        trial.step()
        return {slot for slot, value in trial.state[parameter].items() if value is not None}
    except Exception:  # somebody's own optimizer may need anything
        return None


def _listed(slots: set[str]) -> str:
    return ", ".join(sorted(slots)) or "nothing"


def _advice(theirs: list | None, ours: list | None) -> str:
    if theirs and ours and theirs[0] == ours[0]:
        return "Give the model that type: model.double(), model.float()"
    return "Give the hidden, layers and data that it was trained with"


def _describe(name: str, parameters: dict[str, list]) -> str:
    if name not in parameters:
        return f"no {name}"
    shape, dtype = parameters[name]
    return f"{name} of shape {tuple(shape)} in {dtype.removeprefix('torch.')}"
