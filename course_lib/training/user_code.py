"""Your own model or data for `course train`, named as `file.py:function` or `module:function`.

    def blocks(vocabulary, hidden, layers):       # it may take any of the sizes that the data implies
        return [Embed(vocabulary, hidden), *(Recurrent(hidden) for _ in range(layers)), Project(hidden, vocabulary)]

A model is a list of blocks, so that every strategy can cut it. A block is called with (steps, sequences, ...) and its
state, and returns outputs of (steps, sequences, `width`) and its new state: (h, c), or None if it has none.

    def data():
        return AddingProblem(10_000, (100, 120))  # or a Corpus

Data has a length, and `batch(indices)`, which makes a `Batch` of those examples; tokens also have a `vocabulary`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from course_lib.data import Batch
from course_lib.launchers.target import BadJob, call_yours, find_yours
from course_lib.lstm.model import Loss, SequenceModel, cross_entropy, squared_error, untouched

MODELS = {"gpt": "course_lib.lstm.gpt:gpt_model"}  # the course's models that `--model` accepts by name


def user_model(target: str, sizes: Mapping[str, int]) -> SequenceModel:
    """Return a model of the blocks that the user's function returns. Its parameters name the sizes that it gets."""
    option = f"--model {target}"
    function = find_yours("--model", MODELS.get(target, target))
    names = call_yours(option, inspect.signature, function).parameters
    blocks = call_yours(option, function, **{size: value for size, value in sizes.items() if size in names})
    model = blocks if isinstance(blocks, SequenceModel) else None
    if model is None and isinstance(blocks, torch.nn.ModuleList | torch.nn.Sequential | list | tuple) and len(blocks):
        model = call_yours(option, SequenceModel, dict(enumerate(blocks)))
    if model is None:
        raise BadJob(f"{option} returned {blocks!r:.40}: return a list of blocks, the input block first")
    for place, block in model.numbered():
        if not any(parameter.requires_grad for parameter in block.parameters()):
            raise BadJob(
                f"{option}: block {place} ({type(block).__name__}) has no trainable parameters: move its work into the "
                "block before or after it"
            )
    return model


def user_data(target: str) -> Any:
    """Return the data from the user's function, after checking that it has a length and batches."""
    option = f"--data {target}"
    data = call_yours(option, find_yours("--data", target))
    length, batch = call_yours(option, lambda: (len(data), data.batch([0])))
    if not length or not isinstance(batch, Batch):
        raise BadJob(f"{option}: batch([0]) of its {length} examples is {batch!r:.40}: return a course_lib.data.Batch")
    return data


def sizes_of(data: Any, target: str, has_model: bool) -> dict[str, int]:
    """Return what a model must know about the data: the vocabulary (tokens) or features (numbers), and the outputs."""
    batch: Batch = data.batch([0])
    if batch.inputs.dim() == 3:
        sizes = {"features": batch.inputs.shape[2]}
        if batch.targets.is_floating_point():
            sizes["outputs"] = 1
        elif not has_model:
            raise BadJob(f"--data {target} maps features to classes: give --model, which sets how many there are")
        return sizes
    vocabulary = getattr(data, "vocabulary", None)
    if vocabulary is not None:
        return {"vocabulary": vocabulary if isinstance(vocabulary, int) else len(vocabulary)}
    if not has_model:
        raise BadJob(
            f"--data {target} has tokens and no `vocabulary`: give it one, a list or a number, or give --model"
        )
    return {}


def loss_for(data: Any) -> Loss:
    """Return cross entropy for classes, or squared error for numbers."""
    return squared_error if data.batch([0]).targets.is_floating_point() else cross_entropy


@torch.no_grad()
def check_runs(model: SequenceModel, target: str, batch: Batch) -> None:
    """Run one sequence through the blocks, one by one, and refuse outputs that strategies would train on in silence."""
    sample = batch.rows([0])
    outputs, width = sample.inputs, 0
    with untouched(model):
        for place, block in model.numbered():
            option = f"--model {target}: block {place} ({type(block).__name__})"
            width = call_yours(option, getattr, block, "width")  # the size of its outputs' last dimension
            returned = call_yours(option, block, outputs, None)
            if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[0], torch.Tensor):
                raise BadJob(f"{option} returned {type(returned).__name__}: return (outputs, state)")
            outputs = returned[0]
            if outputs.shape != (sample.steps, 1, width):
                raise BadJob(
                    f"{option} returned outputs of shape {tuple(outputs.shape)} for {sample.steps} steps of one "
                    f"sequence: return (steps, sequences, width), here {(sample.steps, 1, width)}"
                )
    # PyTorch would broadcast outputs that don't fit the targets.
    if batch.targets.is_floating_point() and width != 1:
        raise BadJob(f"--model {target}: the last block has width {width}, and a target is one number: give it width 1")
    if not batch.targets.is_floating_point() and width <= int(batch.targets.max()):
        raise BadJob(
            f"--model {target}: the last block has width {width}, and there is a class {int(batch.targets.max())}: "
            "make it wider"
        )
