"""Jupyter kernels that start on a busy machine, too.

A kernel is told which ports to listen on before it has them. If somebody else takes one in the meantime, it dies, and
another one is started.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

ATTEMPTS = 3


def tried_again(start: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which starts another kernel if one dies before it has answered."""

    @functools.wraps(start)
    def started(*arguments: Any, **keywords: Any) -> Any:
        for _ in range(ATTEMPTS - 1):
            try:
                return start(*arguments, **keywords)
            except RuntimeError:
                continue
        return start(*arguments, **keywords)

    return started


def let_nbval_try_again() -> None:
    """nbval has no option for it."""
    nbval: Any = sys.modules.get("nbval.kernel")
    if nbval:
        nbval.start_new_kernel = tried_again(nbval.start_new_kernel)
