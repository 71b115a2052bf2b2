"""An explorer in a notebook: its controls and its picture, shown by `shell.js`.

A change goes to the kernel, is drawn there, and comes back as text. That takes a few milliseconds, but the page, the
stored picture and the tests share one drawing code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from course_lib.pictures.widgets.view import STYLE, View

HERE = Path(__file__).parent


class LiveView(anywidget.AnyWidget):
    """The page's model of an explorer: see `view.py`."""

    _esm = HERE / "shell.js"
    _css = f"{(HERE / 'shell.css').read_text()}\n{STYLE}"

    title = traitlets.Unicode().tag(sync=True)
    help = traitlets.Unicode().tag(sync=True)
    controls = traitlets.List().tag(sync=True)
    buttons = traitlets.List().tag(sync=True)
    places = traitlets.Dict().tag(sync=True)
    picture = traitlets.Unicode().tag(sync=True)
    below = traitlets.Unicode().tag(sync=True)
    said = traitlets.Unicode().tag(sync=True)
    busy = traitlets.Unicode().tag(sync=True)

    def __init__(self, explorer: Any) -> None:
        super().__init__()
        self._view, self._telling = View(explorer, self._tell), False
        self._tell(self._view.facts())
        self.show()
        self.observe(self._chosen, names="places")
        self.on_msg(self._told)

    def __repr__(self) -> str:
        """Return the text to show below the still picture where there are no widgets."""
        return "Run this cell in a notebook to change what the picture shows."

    def show(self) -> None:
        """Send what the explorer has drawn."""
        self._tell(self._view.state())

    def _tell(self, news: Mapping[str, Any]) -> None:
        """Send the changes in one message."""
        self._telling = True
        with self.hold_sync():
            for name, value in news.items():
                setattr(self, name, value)
        self._telling = False

    def _chosen(self, change: Any) -> None:
        if not self._telling:
            self._view.choose(change["new"])

    def _told(self, _: Any, message: dict[str, Any], __: Any) -> None:
        self._view.told(message)
