"""The messages between an explorer and a page, the same in a notebook and on a website.

`shell.js` shows the page. Both sides refer to values by their places in the lists of options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from course_lib.pictures.widgets.svg import colours

THEME = {name: f"var(--course-{name})" for name in ("ink", "faint", "idle", "paper", "line")}
STYLE = f".course-widget {{ {colours(THEME)} }}"  # the colors, which `shell.css` leaves out


class View:
    """An explorer as a page sees it. `tell` is called with the page's new values, by name.

    `Explorer` imports this module to create a notebook's view, so this module cannot name its type.
    """

    def __init__(self, explorer: Any, tell: Callable[[Mapping[str, Any]], None], ranks: bool = True) -> None:
        """Without `ranks`, no processes can be started, and buttons that would start them are left out."""
        self.explorer, self.tell = explorer, tell
        self.buttons = tuple(button for button in explorer.buttons if ranks or not button.ranks)

    @property
    def left_out(self) -> tuple[Any, ...]:
        """The explorer's buttons that this view leaves out."""
        return tuple(button for button in self.explorer.buttons if button not in self.buttons)

    def facts(self) -> dict[str, Any]:
        """Return what never changes."""
        buttons = [{"name": button.name, "label": button.label} for button in self.buttons]
        return {"title": self.explorer.title, "help": self.explorer.help, "buttons": buttons}

    def state(self) -> dict[str, Any]:
        """Return what changes whenever the picture is redrawn."""
        controls, values, drawing = self.explorer.controls, self.explorer.values, self.explorer.drawing
        return {
            "controls": [control.to_page() for control in controls.values()],
            "places": {name: control.options.index(values[name]) for name, control in controls.items()},
            "picture": drawing.in_page,
            "below": drawing.below,
            "said": drawing.words,
        }

    def choose(self, places: Mapping[str, int]) -> None:
        """Apply the places of the page's controls."""
        chosen = {}
        for name, place in places.items():
            options = self.explorer.controls[name].options
            chosen[name] = options[min(place, len(options) - 1)]  # the page may not know yet that there are fewer
        self.explorer.set(**chosen)

    def told(self, message: Mapping[str, Any]) -> None:
        """Handle a move or a button press in the page."""
        if "move" in message:
            self.explorer.move(message["move"], message["to"])
        elif "press" in message:
            self._press(message["press"])

    def _press(self, name: str) -> None:
        """Press a button. The widget shows any error: no cell is waiting for the result, so no cell could show it."""
        self.tell({"busy": next((button.slow for button in self.buttons if button.name == name), "")})
        try:
            self.explorer.press(name)
        except KeyboardInterrupt:
            self.tell({"said": "Interrupted."})
        except Exception as error:
            self.tell({"said": f"{type(error).__name__}: {error}"})
        finally:
            self.tell({"busy": ""})
