"""Standard input on a rank: there is none, and whoever asks is told what to do instead."""

from __future__ import annotations

import io
import os
import sys

ADVICE = "a rank has no keyboard: ask before the launch, and give the function what was typed as an argument"


class NoKeyboard(io.TextIOWrapper):
    """An empty input that explains itself when a program waits for a line."""

    def readline(self, size: int = -1, /) -> str:
        raise EOFError(ADVICE)


def close_keyboard() -> None:
    """Take standard input away from this process and its children."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if nothing != 0:
        os.close(nothing)
    sys.stdin = NoKeyboard(io.FileIO(0, closefd=False))
