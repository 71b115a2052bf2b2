"""What a cell finds in Jupyter besides Python: `get_ipython`, `display`, and `await` outside of a function.

A magic speaks to Jupyter, and there is none here: it does nothing, but for those that run the code behind them.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
from typing import Any

RUN_THEIR_CODE = ("time", "capture", "prun")  # in the namespace of the cells: what it defines stays


def new_names() -> dict[str, Any]:
    """The names that the first cell finds."""
    names: dict[str, Any] = {"__name__": "__main__", "display": display}
    names["get_ipython"] = Shell(names)
    return names


def run_code(source: str, name: str, names: dict[str, Any]) -> None:
    """Run the Python of one cell. It raises what the cell raises."""
    code = compile(source, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, names))
    else:
        exec(code, names)


def display(*_: Any, **__: Any) -> None:
    """Nothing: nobody looks."""


class Shell:
    """Stands for IPython's shell, and for the function that returns it."""

    def __init__(self, names: dict[str, Any] | None = None) -> None:
        self.user_ns = {} if names is None else names

    def __call__(self) -> Shell:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Shell, ()  # an answer that has a magic in it travels to its ranks, and the notebook stays

    def run_line_magic(self, magic: str, line: str, *_: Any, **__: Any) -> None:
        """Nothing; `%time x = f()` runs its statement."""
        if magic in RUN_THEIR_CODE:
            run_code(line, f"<%{magic}>", self.user_ns)

    def getoutput(self, *_: Any, **__: Any) -> list[str]:
        """No lines: commands are not run."""
        return []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return display
