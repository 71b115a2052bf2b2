"""One line that says what a launch is doing: overwritten in place, and gone when there is something better to read."""

from __future__ import annotations

import html
import os
import shutil
import sys
from typing import Any, TextIO

SWITCH = "COURSE_LIB_LIVE"  # set to 0, nothing is shown that does not stay


def in_a_notebook(stream: TextIO) -> bool:
    """Whether what is written here appears below a cell."""
    return type(stream).__module__.startswith("ipykernel")


class LiveLine:
    """A line below a cell, or the last one of a terminal. In a file or a pipe there is none."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self._shown = ""
        self._cell: Any = None  # where it is shown below a cell

    def show(self, text: str) -> None:
        """Show this in place of what was shown before."""
        if text == self._shown or os.environ.get(SWITCH) == "0":
            return
        before, self._shown = self._shown, text or self._shown  # an interrupt may come when half of it is shown
        if in_a_notebook(self.stream):
            self._show_below_cell(text)
        elif self.stream.isatty():
            self._show_in_terminal(text, before)
        self._shown = text

    def clear(self) -> None:
        """Make room for a line that is about to be printed."""
        if self._shown:
            self.show("")

    def _show_below_cell(self, text: str) -> None:
        from IPython.display import HTML, DisplayHandle

        style = "color:var(--jp-ui-font-color2,#616161);font-family:var(--jp-code-font-family,monospace)"
        shown = HTML(f'<div role="status" style="{style}">{html.escape(text)}</div>' if text else "")
        if self._cell is None:
            self._cell = DisplayHandle()
            self._cell.display(shown)
        else:
            self._cell.update(shown)

    def _show_in_terminal(self, text: str, before: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        self.stream.write("\r" + text[:width].ljust(min(len(before), width)) + ("" if text else "\r"))
        self.stream.flush()
