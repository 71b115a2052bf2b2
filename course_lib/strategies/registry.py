"""Strategies by name, for the command line: the course's, and your own as `module:Class` or `file.py:Class`."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from course_lib.planning.placement import Placement
from course_lib.planning.schedule import Schedule
from course_lib.planning.simulation import ActionCosts
from course_lib.strategies.base import PRECISIONS, Single, Strategy
from course_lib.strategies.ddp import DDP, Accumulation
from course_lib.strategies.fsdp import FSDP
from course_lib.strategies.hybrid import Hybrid
from course_lib.strategies.model_parallel import ModelParallel
from course_lib.strategies.pipeline import Pipeline
from course_lib.strategies.tensor_parallel import TensorParallel

STRATEGIES: dict[str, type[Strategy]] = {
    "single": Single,
    "ddp": DDP,
    "accumulation": Accumulation,
    "model": ModelParallel,
    "tensor": TensorParallel,
    "pipeline": Pipeline,
    "hybrid": Hybrid,
    "fsdp": FSDP,
}


PIECES = ("micro_batches", "chunks", "virtual", "replicas", "shards")
MOST_PIECES = 10_000  # the limit for each of PIECES: more only wastes memory
REQUIRED = ("model", "optimizer", "loss")  # every strategy takes these; its other arguments are options


def find_strategy(name: str) -> type[Strategy]:
    """Return the strategy with this name, or the class that `module:Class` names."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    module, colon, class_name = name.rpartition(":")
    if not colon:
        raise ValueError(f"strategy={name}: choose {', '.join(STRATEGIES)}, or name your own as module:Class")
    try:
        candidate = getattr(_import(module), class_name, None)
    except (Exception, SystemExit) as error:  # user code may raise anything
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        raise ValueError(f"strategy={name}: the module {module} cannot be imported: {kind}{error}") from error
    if not isinstance(candidate, type):
        raise ValueError(f"strategy={name}: {module} has no class {class_name}")
    check_is_strategy(candidate)
    return candidate


def _import(module: str) -> ModuleType:
    """Import a module by name, including from the current directory, or by its file's path."""
    file = Path(module).absolute()
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    if not module.endswith(".py"):
        return importlib.import_module(module)
    loader = SourceFileLoader(f"course_lib strategy {file.stem}", str(file))  # json.py must not shadow Python's json
    loaded = module_from_spec(spec_from_loader(loader.name, loader) or ModuleSpec(loader.name, loader))
    loader.exec_module(loaded)
    return loaded


def check_is_strategy(candidate: Any) -> None:
    """Refuse a class that cannot be trained, compared and saved as a strategy."""
    kind = candidate if isinstance(candidate, type) else type(candidate)
    missing = [
        name for name in ("share", "step", "shards", "checked_shards") if not callable(getattr(kind, name, None))
    ]
    if missing:
        raise ValueError(
            f"{kind.__name__} has no {missing[0]}(): derive it from course_lib.strategies.Strategy, which has one"
        )


def make_strategy(
    name: str, learning_rate: float, options: Mapping[str, Any], precision: str = "fp32"
) -> Callable[..., Strategy]:
    """Return a function that makes the strategy from a model and a loss, with Adam and gradients clipped to norm 1.

    The option `bfloat16=True` means the same as `precision="bf16"`.
    """
    kind, options = find_strategy(name), dict(options)
    accepted = options_of(kind)
    autocast = _autocast(precision, options.pop("bfloat16", False))
    if autocast and accepted.pop("autocast", None) is None:
        raise ValueError(f"strategy={name} computes only in fp32: leave out bf16 or fp16")
    accepted.pop("autocast", None)
    for option, value in options.items():
        if option not in accepted:
            raise ValueError(f"strategy={name} has no option {option}: it takes {', '.join(accepted)}")
        _check_option(option, value, accepted[option].annotation)
    for option, parameter in accepted.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise ValueError(f"strategy={name} needs {option}: give it as {option}=4")
    if not isinstance(options.get("placement"), Placement | None):
        options["placement"] = _placement(options["placement"])
    adam = partial(torch.optim.Adam, lr=learning_rate)
    clip = {"clip": 1.0} if "clip" in accepted else {}
    half = {"autocast": autocast} if autocast else {}
    return partial(kind, **{"optimizer": adam, **clip, **half, **options})


def _autocast(precision: str, in_bfloat16: Any) -> torch.dtype | None:
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision}: choose {', '.join(PRECISIONS)}")
    _check_option("bfloat16", in_bfloat16, bool)
    if in_bfloat16 and precision == "fp16":
        raise ValueError("bfloat16=True and precision=fp16: give only one of the two")
    return torch.bfloat16 if in_bfloat16 else PRECISIONS[precision]


def options_of(kind: type[Strategy]) -> dict[str, inspect.Parameter]:
    """Return the keyword arguments that a strategy takes, including those that it passes on to its base class."""
    options: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(base).parameters.values()
        named = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        options |= {p.name: p for p in named if p.name not in (*REQUIRED, *options)}
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
            break
    return options


def _check_option(name: str, value: Any, annotation: Any) -> None:
    is_optional = annotation == "int | None" and value is not None
    if (annotation in ("int", int) or is_optional) and type(value) is not int:
        raise ValueError(f"{name}={value}: give a whole number")
    if annotation in ("bool", bool) and type(value) is not bool:
        raise ValueError(f"{name}={value}: give True or False")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if annotation in ("float", float) and not is_number:
        raise ValueError(f"{name}={value}: give a number")
    if name == "clip" and value is not None and not (is_number and value > 0):
        raise ValueError(f"clip={value}: give a norm above 0, or None to leave gradients as they are")
    if annotation == "float | None" and value is not None and not (is_number and value > 0):
        raise ValueError(f"{name}={value}: give a number above 0, or None")
    if name in PIECES and isinstance(value, int) and not 1 <= value <= MOST_PIECES:
        raise ValueError(f"{name}={value}: give a whole number from 1 to {MOST_PIECES}")
    _check_word(name, value, annotation)


def _check_word(name: str, value: Any, annotation: Any) -> None:
    """Refuse a number for an option that takes a name, and text for an option that only code can set."""
    if annotation == "str" and not isinstance(value, str):
        raise ValueError(f"{name}={value}: give a word")
    if annotation == "str | Schedule" and not isinstance(value, str | Schedule):
        raise ValueError(f"{name}={value}: give the name of a schedule, for example {name}=1f1b")
    if annotation == "ActionCosts | None" and not isinstance(value, ActionCosts | None):
        raise ValueError(f"{name}={value}: this can only be set in code; leave it out")


def _placement(stage_of: Any) -> Placement:
    if not isinstance(stage_of, tuple | list):
        raise ValueError(f"placement={stage_of}: give the stage of each block, for example placement=0,0,1,1")
    return Placement(tuple(stage_of))
