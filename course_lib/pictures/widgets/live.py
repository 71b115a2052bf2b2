"""An explorer in a notebook: its controls and its picture, shown by `shell.js`.

A change travels to the kernel, is drawn there, and comes back as text: that takes some milliseconds, and one way of
drawing serves the page, the stored picture and the tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from course_lib.pictures.widgets.svg import colours

HERE = Path(__file__).parent
THEME = {name: f"var(--course-{name})" for name in ("ink", "faint", "idle", "paper", "line")}


class LiveView(anywidget.AnyWidget):
    """What the page knows of an explorer. Values are places in the lists of options.

    An `Explorer` makes its view, and imports this module when it does: here, its type has no name.
    """

    _esm = HERE / "shell.js"
    _css = f"{(HERE / 'shell.css').read_text()}\n.course-widget {{ {colours(THEME)} }}"

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
        self.title, self.help = explorer.title, explorer.help
        self.buttons = [{"name": button.name, "label": button.label} for button in explorer.buttons]
        self._explorer, self._showing = explorer, False
        self.show(explorer)
        self.observe(self._chosen, names="places")
        self.on_msg(self._told)

    def __repr__(self) -> str:
        """What stands below the still picture where there are no widgets."""
        return "Run this cell in a notebook to change what the picture shows."

    def show(self, explorer: Any) -> None:
        """Send what has changed, in one message."""
        self._showing = True
        with self.hold_sync():
            self.controls = [control.to_page() for control in explorer.controls.values()]
            self.places = {
                name: control.options.index(explorer.values[name]) for name, control in explorer.controls.items()
            }
            self.picture, self.below = explorer.drawing.in_page, explorer.drawing.below
            self.said = explorer.drawing.words
        self._showing = False

    def _chosen(self, change: Any) -> None:
        if self._showing:
            return
        controls = self._explorer.controls
        chosen = {}
        for name, place in change["new"].items():
            options = controls[name].options
            chosen[name] = options[min(place, len(options) - 1)]  # the page may not know yet that there are fewer now
        self._explorer.set(**chosen)

    def _told(self, _: Any, message: dict[str, Any], __: Any) -> None:
        if "move" in message:
            self._explorer.move(message["move"], message["to"])
        elif "press" in message:
            self._press(message["press"])

    def _press(self, name: str) -> None:
        """What goes wrong is said in the widget: no cell waits for the answer, so no cell would show it."""
        self.busy = next((button.slow for button in self._explorer.buttons if button.name == name), "")
        try:
            self._explorer.press(name)
        except KeyboardInterrupt:
            self.said = "Interrupted."
        except Exception as error:
            self.said = f"{type(error).__name__}: {error}"
        finally:
            self.busy = ""
