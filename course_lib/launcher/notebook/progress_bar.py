"""The progress of a run, shown in the notebook or the terminal.

`LiveLine` is a line that is overwritten in place and disappears when there is something better to read.
"""

from __future__ import annotations

import html
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from course_lib.launcher.wire.progress import Progress

if TYPE_CHECKING:
    from tqdm import tqdm

SWITCH = "COURSE_LIB_LIVE"  # set to 0 to hide temporary lines


def in_a_notebook(stream: TextIO) -> bool:
    """Return whether what is written to this stream appears below a cell."""
    return type(stream).__module__.startswith("ipykernel")


class LiveLine:
    """A temporary line below a cell, or the last line of a terminal. In a file or a pipe, it shows nothing."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self._shown = ""
        self._cell: Any = None  # the display handle, in a notebook

    def show(self, text: str) -> None:
        """Replace the line with this text."""
        if text == self._shown or os.environ.get(SWITCH) == "0":
            return
        before, self._shown = self._shown, text or self._shown  # an interrupt may come when half of the text is written
        if in_a_notebook(self.stream):
            from IPython.display import HTML, DisplayHandle

            style = "color:var(--jp-ui-font-color2,#616161);font-family:var(--jp-code-font-family,monospace)"
            shown = HTML(f'<div role="status" style="{style}">{html.escape(text)}</div>' if text else "")
            if self._cell is None:
                self._cell = DisplayHandle()
                self._cell.display(shown)
            else:
                self._cell.update(shown)
        elif self.stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            self.stream.write("\r" + text[:width].ljust(min(len(before), width)) + ("" if text else "\r"))
            self.stream.flush()
        self._shown = text

    def clear(self) -> None:
        """Make room for a line that is about to be printed."""
        if self._shown:
            self.show("")


LINE_EVERY = 10.0


class ProgressBar:
    """A progress bar in a terminal or a notebook. In a file or a pipe, a line every ten seconds."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self._bar: tqdm | None = None
        self._last_line = time.monotonic()

    def show(self, progress: Progress) -> None:
        """Update the bar."""
        if not (in_a_notebook(self.stream) or self.stream.isatty()):
            if time.monotonic() - self._last_line >= LINE_EVERY:
                self._last_line = time.monotonic()
                print(progress, file=self.stream, flush=True)
            return
        if self._bar is None:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=progress.total, initial=progress.done, file=self.stream, unit="update", leave=False)
        self._bar.set_postfix_str(progress.note, refresh=False)
        self._bar.update(progress.done - self._bar.n)

    def clear(self) -> None:
        """Make room for a line that is about to be printed."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
