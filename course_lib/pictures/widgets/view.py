"""What a page is told of an explorer, and what becomes of what the page tells: the same in a notebook and on a website.

`shell.js` shows it. Values travel as places in the lists of options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from course_lib.pictures.widgets.svg import colours

THEME = {name: f"var(--course-{name})" for name in ("ink", "faint", "idle", "paper", "line")}
STYLE = f".course-widget {{ {colours(THEME)} }}"  # what `shell.css` leaves to the palette


class View:
    """An explorer as a page sees it. `tell` is called with what the page should know from now on, by name.

    An `Explorer` makes the view of a notebook, and imports this module when it does: here, its type has no name.
    """

    def __init__(self, explorer: Any, tell: Callable[[Mapping[str, Any]], None], ranks: bool = True) -> None:
        """Without `ranks` there are no processes to start, and no buttons that would."""
        self.explorer, self.tell = explorer, tell
        self.buttons = tuple(button for button in explorer.buttons if ranks or not button.ranks)

    @property
    def left_out(self) -> tuple[Any, ...]:
        """The explorer's buttons that this view does not have."""
        return tuple(button for button in self.explorer.buttons if button not in self.buttons)

    def facts(self) -> dict[str, Any]:
        """What stays as it is."""
        buttons = [{"name": button.name, "label": button.label} for button in self.buttons]
        return {"title": self.explorer.title, "help": self.explorer.help, "buttons": buttons}

    def state(self) -> dict[str, Any]:
        """What changes whenever the picture is drawn again."""
        controls, values, drawing = self.explorer.controls, self.explorer.values, self.explorer.drawing
        return {
            "controls": [control.to_page() for control in controls.values()],
            "places": {name: control.options.index(values[name]) for name, control in controls.items()},
            "picture": drawing.in_page,
            "below": drawing.below,
            "said": drawing.words,
        }

    def choose(self, places: Mapping[str, int]) -> None:
        """The page's controls stand at these places."""
        chosen = {}
        for name, place in places.items():
            options = self.explorer.controls[name].options
            chosen[name] = options[min(place, len(options) - 1)]  # the page may not know yet that there are fewer now
        self.explorer.set(**chosen)

    def told(self, message: Mapping[str, Any]) -> None:
        """Something was moved in the page, or a button pressed."""
        if "move" in message:
            self.explorer.move(message["move"], message["to"])
        elif "press" in message:
            self._press(message["press"])

    def _press(self, name: str) -> None:
        """What goes wrong is said in the widget: no cell waits for the answer, so no cell would show it."""
        self.tell({"busy": next((button.slow for button in self.buttons if button.name == name), "")})
        try:
            self.explorer.press(name)
        except KeyboardInterrupt:
            self.tell({"said": "Interrupted."})
        except Exception as error:
            self.tell({"said": f"{type(error).__name__}: {error}"})
        finally:
            self.tell({"busy": ""})
