"""What Jupyter adds to Python in a cell: `get_ipython`, `display`, and `await` outside of a function.

There is no Jupyter here, so magics do nothing, except for those that run the code after them.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
from typing import Any

RUN_THEIR_CODE = ("time", "capture", "prun")  # in the cells' namespace, so the names it defines remain


def new_names() -> dict[str, Any]:
    """Return the namespace in which the first cell runs."""
    names: dict[str, Any] = {"__name__": "__main__", "display": display}
    names["get_ipython"] = Shell(names)
    return names


def run_code(source: str, name: str, names: dict[str, Any]) -> None:
    """Run the Python of one cell. Raises whatever the cell raises."""
    code = compile(source, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, names))
    else:
        exec(code, names)


def display(*_: Any, **__: Any) -> None:
    """Do nothing: there is no page to show it on."""


class Shell:
    """A stand-in for IPython's shell and for the function that returns it."""

    def __init__(self, names: dict[str, Any] | None = None) -> None:
        self.user_ns = {} if names is None else names

    def __call__(self) -> Shell:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Shell, ()  # pickling an answer that uses a magic must not pickle the whole notebook

    def run_line_magic(self, magic: str, line: str, *_: Any, **__: Any) -> None:
        """Do nothing, except that `%time x = f()` runs its statement."""
        if magic in RUN_THEIR_CODE:
            run_code(line, f"<%{magic}>", self.user_ns)

    def getoutput(self, *_: Any, **__: Any) -> list[str]:
        """Return no lines: shell commands are not run."""
        return []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return display
