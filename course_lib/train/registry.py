"""Strategies by name, for the command line: the course's, and your own as `module:Class` or `file.py:Class`."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch

from course_lib.core.strategy import PRECISIONS, Single, Strategy, check_is_strategy
from course_lib.data_parallel.ddp import DDP, Accumulation
from course_lib.launcher.jobs.target import find_yours
from course_lib.model_parallel.model_parallel import ModelParallel
from course_lib.model_parallel.placement import Placement
from course_lib.model_parallel.tensor_parallel import TensorParallel
from course_lib.pipeline.pipeline import Pipeline
from course_lib.sharding.fsdp import FSDP
from course_lib.sharding.hybrid import Hybrid

STRATEGIES: dict[str, type[Strategy]] = {
    "single": Single, "ddp": DDP, "accumulation": Accumulation, "model": ModelParallel, "tensor": TensorParallel,
    "pipeline": Pipeline, "hybrid": Hybrid, "fsdp": FSDP,
}  # fmt: skip
PIECES = ("micro_batches", "chunks", "virtual", "replicas", "shards")
MOST_PIECES = 10_000  # the limit for each of PIECES: more only wastes memory
REQUIRED = ("model", "optimizer", "loss")  # every strategy takes these; its other arguments are options
IN_WORDS = {int: "a whole number", bool: "True or False", float: "a number", str: "a word"}
IN_WORDS |= {Placement: "the stage of each block, for example 0,0,1,1"}  # other types can only be set in code


def find_strategy(name: str) -> type[Strategy]:
    """Return the strategy with this name, or the class that `module:Class` names."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    if ":" not in name:
        raise ValueError(f"strategy={name}: choose {', '.join(STRATEGIES)}, or name your own as module:Class")
    candidate = find_yours("strategy", name)
    if not isinstance(candidate, type):
        raise ValueError(f"strategy {name}: this is not a class")
    check_is_strategy(candidate)
    return candidate


def make_strategy(
    name: str, learning_rate: float, options: Mapping[str, Any], precision: str = "fp32"
) -> Callable[..., Strategy]:
    """Return a function that makes the strategy from a model and a loss, with Adam and gradients clipped to norm 1."""
    kind, chosen = checked_options(name, options, precision)
    usual = {"optimizer": partial(torch.optim.Adam, lr=learning_rate), "clip": 1.0, "autocast": PRECISIONS[precision]}
    accepted = {"optimizer", *options_of(kind)}
    return partial(kind, **({option: value for option, value in usual.items() if option in accepted} | chosen))


def checked_options(
    name: str, options: Mapping[str, Any], precision: str = "fp32"
) -> tuple[type[Strategy], dict[str, Any]]:
    """Return the strategy with this name, and its options. Refuse those that it does not have or cannot use."""
    kind = find_strategy(name)
    accepted = options_of(kind)
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision}: choose {', '.join(PRECISIONS)}")
    if accepted.pop("autocast", None) is None and PRECISIONS[precision]:
        raise ValueError(f"strategy={name} computes only in fp32: leave out --precision {precision}")
    for option in options:
        if option not in accepted:
            raise ValueError(f"strategy={name} has no option {option}: it takes {', '.join(accepted)}")
    for option, parameter in accepted.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise ValueError(f"strategy={name} needs {option}: give it as {option}=4")
    return kind, {option: _checked(option, value, accepted[option].annotation) for option, value in options.items()}


def options_of(kind: type[Strategy]) -> dict[str, inspect.Parameter]:
    """Return the keyword arguments that a strategy takes, including those that it passes on to its base class.

    Their annotations are resolved, so `Optional[int]` and `"int | None"` are the same. `Any`: we don't know the type.
    """
    options: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        try:
            hints = get_type_hints(base.__init__)
        except (NameError, TypeError):  # such as a name that is imported for the type checker alone
            hints = {}
        parameters = inspect.signature(base).parameters.values()
        for p in parameters:
            if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in (*REQUIRED, *options):
                options[p.name] = p.replace(annotation=hints.get(p.name, Any))
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return options


def _checked(name: str, value: Any, hint: Any) -> Any:
    """Return the option's value. Refuse one that its type excludes; only the strategy knows what `list[int]` allows."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if Any in kinds or not all(isinstance(kind, type) and get_origin(kind) is None for kind in kinds):
        return value
    if Placement in kinds and isinstance(value, tuple | list) and all(type(stage) is int for stage in value):
        return Placement(tuple(value))
    number: Any = value
    if isinstance(value, bool):  # Python says that True is an int
        fits = bool in kinds
    else:
        fits = isinstance(value, kinds) or (float in kinds and isinstance(value, int))
    words = ", or ".join(word for kind, word in IN_WORDS.items() if kind in kinds)
    if float in kinds and type(None) in kinds:  # a limit: None says that there is none, so 0 says nothing
        fits, words = fits and (value is None or number > 0), "a number above 0, or None"
    if name in PIECES and value is not None:
        fits, words = fits and 1 <= number <= MOST_PIECES, f"a whole number from 1 to {MOST_PIECES}"
    if not fits:
        advice = f"give {words}" if words else "this can only be set in code; leave it out"
        raise ValueError(f"{name}={value}: {advice}")
    return value
