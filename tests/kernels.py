"""nbval, with what it has no options for: kernels that start on a busy machine, and outputs that are not compared.

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


def prepare_nbval() -> None:
    """Start kernels again that die; compare the text of an output, and not how HTML dresses it."""
    kernels: Any = sys.modules.get("nbval.kernel")
    plugin: Any = sys.modules.get("nbval.plugin")
    if not (kernels and plugin):
        return
    kernels.start_new_kernel = tried_again(kernels.start_new_kernel)
    begin = plugin.IPyNbFile.__init__

    @functools.wraps(begin)
    def begin_with_less(self: Any, *arguments: Any, **keywords: Any) -> None:
        begin(self, *arguments, **keywords)
        self.skip_compare += ("text/html", "image/svg+xml")

    plugin.IPyNbFile.__init__ = begin_with_less
