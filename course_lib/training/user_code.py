"""Your own model or data for `course train`, named as `file.py:function` or `module:function`.

    def blocks(vocabulary, hidden, layers):       # it may take any of SIZES
        return [Embed(vocabulary, hidden), *(Recurrent(hidden) for _ in range(layers)), Project(hidden, vocabulary)]

A model is a list of blocks, so that every strategy can cut it. A block is called with (steps, sequences, ...) and its
state, and returns outputs of (steps, sequences, `width`) and its new state: (h, c), or None if it has none.

    def data():
        return AddingProblem(10_000, (100, 120))  # or a Corpus

Data has a length, and `batch(indices)`, which makes a `Batch` of those examples; tokens also have a `vocabulary`.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.data import Batch
from course_lib.launchers import LaunchError
from course_lib.launchers.target import BadJob, find_function
from course_lib.lstm.model import Loss, SequenceModel, cross_entropy, squared_error, untouched

SIZES = ("vocabulary", "features", "outputs", "hidden", "layers")
MODELS = {"gpt": "course_lib.lstm.gpt:gpt_model"}  # the course's models that `--model` accepts by name


class BadFunction(ValueError):
    """A model or data that cannot be used. The message says what to change."""


def names_a_function(text: str) -> bool:
    """Return whether this is `something:name`, and not an existing file."""
    with suppress(ValueError, OSError):
        if os.path.lexists(text):
            return False
    place, colon, name = text.rpartition(":")
    return bool(colon and place) and name.isidentifier()


def user_function(option: str, target: str) -> Callable[..., Any]:
    """Return the function that `--model` or `--data` names."""
    current_folder = str(Path.cwd())
    if current_folder not in sys.path:
        sys.path.insert(0, current_folder)
    try:
        return find_function(MODELS.get(target, target) if option == "model" else target)
    except (BadJob, LaunchError) as error:
        reason = str(error).splitlines()[0]
        raise BadFunction(f"--{option} {target}: {reason.removeprefix(f'{target}: ')}") from error


def user_model(target: str, sizes: Mapping[str, int]) -> SequenceModel:
    """Return a model of the blocks that the user's function returns. Its parameters name the sizes that it gets."""
    name = f"--model {target}"
    function = user_function("model", target)
    parameters = _parameters(function)
    required = [argument for argument, parameter in parameters.items() if _is_needed(parameter)]
    if unknown := [argument for argument in required if argument not in sizes]:
        raise BadFunction(f"{name} takes {unknown[0]}: for this data it may take {', '.join(sizes)}")
    blocks = _call(name, function, **{size: value for size, value in sizes.items() if size in parameters})
    if isinstance(blocks, SequenceModel):
        return blocks
    if not isinstance(blocks, nn.ModuleList | nn.Sequential | list | tuple) or not len(blocks):
        raise BadFunction(f"{name} returned {_kind(blocks)}: return a list of blocks, the input block first")
    for place, block in enumerate(blocks):
        _check_block(name, place, block)
    return SequenceModel(dict(enumerate(blocks)))


def user_data(target: str) -> Any:
    """Return the data from the user's function, after checking that it has a length and batches."""
    name = f"--data {target}"
    function = user_function("data", target)
    if required := [argument for argument, parameter in _parameters(function).items() if _is_needed(parameter)]:
        raise BadFunction(f"{name} takes {required[0]}: it is called without arguments")
    data = _call(name, function)
    if not callable(getattr(data, "batch", None)) or not hasattr(type(data), "__len__"):
        raise BadFunction(f"{name} returned {_kind(data)}: return data that has a length, and batch(indices)")
    if _call(name, len, data) < 1:
        raise BadFunction(f"{name} returned data without examples: return at least one")
    batch = _call(name, data.batch, [0])
    if not isinstance(batch, Batch):
        raise BadFunction(f"{name}: batch([0]) returned {_kind(batch)}: return a course_lib.data.Batch")
    return data


def sizes_of(data: Any, target: str, has_model: bool) -> dict[str, int]:
    """Return what a model must know about the data: the vocabulary (tokens) or features (numbers), and the outputs."""
    batch: Batch = data.batch([0])
    if batch.inputs.dim() == 3:
        if batch.targets.is_floating_point():
            return {"features": batch.inputs.shape[2], "outputs": 1}
        if has_model:
            return {"features": batch.inputs.shape[2]}
        raise BadFunction(f"--data {target} maps features to classes: give --model, which sets how many there are")
    vocabulary = getattr(data, "vocabulary", None)
    if vocabulary is not None:
        return {"vocabulary": vocabulary if isinstance(vocabulary, int) else len(vocabulary)}
    if has_model:
        return {}
    raise BadFunction(
        f"--data {target} has tokens and no `vocabulary`: give it one, a list or a number, or give --model"
    )


def loss_for(data: Any) -> Loss:
    """Return cross-entropy if the targets are classes, and the squared error if they are numbers."""
    return squared_error if data.batch([0]).targets.is_floating_point() else cross_entropy


@torch.no_grad()
def check_runs(model: SequenceModel, target: str, batch: Batch) -> None:
    """Run one sequence through the blocks, one by one, and refuse blocks that strategies cannot train."""
    sample = batch.rows([0])
    outputs = sample.inputs
    with untouched(model):
        for place, block in model.numbered():
            name = f"--model {target}: block {place} ({type(block).__name__})"
            returned = _call(name, block, outputs, None)
            if not isinstance(returned, Sequence) or len(returned) != 2 or not isinstance(returned[0], Tensor):
                raise BadFunction(f"{name} returned {_kind(returned)}: return (outputs, state)")
            outputs, state = returned
            if tuple(outputs.shape) != (sample.steps, 1, block.width):
                raise BadFunction(
                    f"{name} returned outputs of shape {tuple(outputs.shape)} for {sample.steps} steps of one "
                    f"sequence: return (steps, sequences, width), here {(sample.steps, 1, block.width)}"
                )
            if state is not None and not (len(state) == 2 and all(isinstance(part, Tensor) for part in state)):
                raise BadFunction(f"{name} returned a state that is not (h, c): return these two tensors, or None")
    _check_outputs(f"--model {target}: the last block", outputs.shape[-1], batch)


def _check_outputs(name: str, width: int, batch: Batch) -> None:
    """Refuse outputs whose shape does not fit the targets. PyTorch would broadcast them and train on the result."""
    if batch.targets.is_floating_point() and width != 1:
        raise BadFunction(f"{name} has width {width}, and a target is one number: give it width 1")
    if not batch.targets.is_floating_point() and width <= int(batch.targets.max()):
        raise BadFunction(f"{name} has width {width}, and there is a class {int(batch.targets.max())}: make it wider")


def _check_block(name: str, place: int, block: Any) -> None:
    if not isinstance(block, nn.Module):
        raise BadFunction(f"{name}: block {place} is {_kind(block)}: return torch.nn.Modules")
    which = f"{name}: block {place} ({type(block).__name__})"
    if type(getattr(block, "width", None)) is not int:
        raise BadFunction(f"{which} has no width: give it one, the size of its outputs' last dimension")
    if not any(parameter.requires_grad for parameter in block.parameters()):
        raise BadFunction(f"{which} has no trainable parameters: move its work into the block before or after it")


def _call(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of a user's function; turn an exception into one sentence, with the file and line."""
    try:
        return function(*args, **kwargs)
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        library = (sys.prefix, os.path.dirname(__file__))
        frame = next((frame for frame in reversed(frames) if not frame.filename.startswith(library)), None)
        location = f" ({Path(frame.filename).name}, line {frame.lineno})" if frame else ""
        message = " ".join(str(error).split())
        raise BadFunction(f"{name} raises {type(error).__name__}: {message}{location}") from error


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return {}


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
