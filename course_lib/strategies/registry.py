"""Strategies by name, for the command line: ours, and one of your own as `module:Class` or `file.py:Class`."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from course_lib.planning.placement import Placement
from course_lib.strategies.accumulation import Accumulation
from course_lib.strategies.base import Strategy
from course_lib.strategies.ddp import DDP
from course_lib.strategies.hybrid import Hybrid
from course_lib.strategies.model_parallel import ModelParallel
from course_lib.strategies.pipeline import Pipeline
from course_lib.strategies.single import Single
from course_lib.strategies.tensor_parallel import TensorParallel

STRATEGIES: dict[str, type[Strategy]] = {
    "single": Single,
    "ddp": DDP,
    "accumulation": Accumulation,
    "model": ModelParallel,
    "tensor": TensorParallel,
    "pipeline": Pipeline,
    "hybrid": Hybrid,
}


def find_strategy(name: str) -> type[Strategy]:
    """The strategy of that name, or the class that `module:Class` names."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    module, colon, class_name = name.rpartition(":")
    if not colon:
        raise ValueError(f"strategy={name}: choose {', '.join(STRATEGIES)}, or name your own as module:Class")
    try:
        found = getattr(_import(module), class_name, None)
    except ImportError as error:
        raise ValueError(f"strategy={name}: the module {module} cannot be imported: {error}") from error
    if found is None:
        raise ValueError(f"strategy={name}: {module} has no {class_name}")
    check_is_strategy(found)
    return found


def _import(module: str) -> ModuleType:
    """A module by its name, also one that lies where the command was given, or by its file's."""
    file = Path(module).absolute() if module.endswith(".py") else Path.cwd() / module
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    return importlib.import_module(file.stem if module.endswith(".py") else module)


def check_is_strategy(candidate: Any) -> None:
    """Refuse what cannot be trained, compared and saved as a strategy."""
    kind = candidate if isinstance(candidate, type) else type(candidate)
    missing = [name for name in ("share", "step", "shards") if not callable(getattr(kind, name, None))]
    if missing:
        raise ValueError(
            f"{kind.__name__} has no {missing[0]}(): derive it from course_lib.strategies.Strategy, which has one"
        )


def make_strategy(name: str, learning_rate: float, options: Mapping[str, Any]) -> Callable[..., Strategy]:
    """What makes the strategy of a model and a loss: with Adam, and gradients clipped to a norm of 1."""
    kind, given = find_strategy(name), dict(options)
    if given.pop("bfloat16", False):
        given["autocast"] = torch.bfloat16
    known = options_of(kind)
    for option, value in given.items():
        if option not in known:
            raise ValueError(f"strategy={name} has no option {option}: it takes {', '.join(known)}")
        if known[option].annotation in ("int", int) and type(value) is not int:
            raise ValueError(f"{option}={value}: give a whole number")
    for option, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and option not in given:
            raise ValueError(f"strategy={name} needs {option}: give it as {option}=4")
    if not isinstance(given.get("placement"), Placement | None):
        given["placement"] = _placement(given["placement"])
    adam = partial(torch.optim.Adam, lr=learning_rate)
    clip = {"clip": 1.0} if "clip" in known else {}
    return partial(kind, **{"optimizer": adam, **clip, **given})


def options_of(kind: type[Strategy]) -> dict[str, inspect.Parameter]:
    """The keyword arguments that a strategy takes: its own, and those that it hands on to the class it derives from."""
    options: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(base).parameters.values()
        options |= {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in options}
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
            break
    return options


def _placement(stage_of: Any) -> Placement:
    if not isinstance(stage_of, tuple | list):
        raise ValueError(f"placement={stage_of}: give the stage of each block, for example placement=0,0,1,1")
    return Placement(tuple(stage_of))
