"""Packages whose names are imported when they are first used, so that a program pays only for what it needs."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package that lists its names as imports behind `if TYPE_CHECKING`.

    So the list reads as usual, and type checkers understand it, but `from course_lib.pipeline import gpipe` loads no
    widget, and no matplotlib.
    """
    module = sys.modules[package]
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    blocks = [
        node for node in tree.body if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    ]
    imports = [each for block in blocks for each in block.body if isinstance(each, ast.ImportFrom) and each.module]
    homes = {alias.name: str(each.module) for each in imports for alias in each.names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(homes[name])
        return getattr(home, name) if hasattr(home, name) else importlib.import_module(f"{homes[name]}.{name}")

    vars(module)["__all__"] = sorted(homes)
    return get, lambda: sorted({*vars(module), *homes})
