"""Make one process look like several, as the ranks of a real job are.

The ranks of a check are forks of one process, so they all have the same string hashes, parent id and clock. In a real
job, each rank is a separate interpreter, often on a different machine, and all three differ.
"""

from __future__ import annotations

import builtins
import os
import platform
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

APART, BITS = 0x1B873593CC9E2D51, (1 << 61) - 1  # make the hashes of one process differ from the next one's
SECONDS = 86_400.0 + 1_237.0  # between two processes' clocks: far more than in reality, so that rounding can't hide it


@contextmanager
def as_process(number: int, answer: Any) -> Iterator[None]:
    """Let this thread see the hashes, process ids, clock and host name of process `number`; 0 is the process itself.

    `answer` is the function to call. Names that its module imported, as in `from time import time`, are patched, too.
    """
    me, found = threading.get_ident(), hash

    def hash_there(value: Any) -> int:
        return found(value) ^ (number * APART & BITS if threading.get_ident() == me and _is_salted(value) else 0)

    def later(function: Callable[[], Any], by: float) -> Callable[[], Any]:
        return lambda: function() + (type(by)(number * by) if threading.get_ident() == me else 0)

    def renamed(function: Callable[[], str]) -> Callable[[], str]:
        return lambda: f"{function()}-{number}" if number and threading.get_ident() == me else function()

    patches: list[tuple[Any, str, Callable]] = [
        (builtins, "hash", hash_there),
        (os, "getpid", later(os.getpid, 7)),
        (os, "getppid", later(os.getppid, 7)),
        (time, "time", later(time.time, SECONDS)),
        (time, "time_ns", later(time.time_ns, int(1e9 * SECONDS))),
        (socket, "gethostname", renamed(socket.gethostname)),
        (platform, "node", renamed(platform.node)),
        (uuid, "getnode", later(uuid.getnode, 7)),
    ]
    names = getattr(answer, "__globals__", {})
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    by_original = {id(original): patch for (_, _, original), (*_, patch) in zip(before, patches, strict=True)}
    imported = {name: value for name, value in names.items() if id(value) in by_original}
    try:
        for owner, name, replacement in patches:
            setattr(owner, name, replacement)
        names.update({name: by_original[id(value)] for name, value in imported.items()})
        yield
    finally:
        names.update(imported)
        for owner, name, original in before:
            setattr(owner, name, original)


def _is_salted(value: Any) -> bool:
    """Return whether Python hashes this value differently in every process (unless PYTHONHASHSEED is set)."""
    if isinstance(value, (tuple, frozenset)):
        return any(map(_is_salted, value))
    return isinstance(value, (str, bytes)) and bool(value)  # an empty one has the same hash everywhere
