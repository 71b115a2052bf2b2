"""What all widgets have in common: controls with values, and a picture that depends on them.

Everything is plain Python, so you can use, test and store it without a browser. In a notebook, `live_view` shows the
same controls and the same picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from course_lib.drawing.svg import Drawing, colors, element


@dataclass(frozen=True)
class Control:
    """A control that selects one of `options`; `words` has the label of each.

    `kind` is slider or choice. A slider that `plays` also has buttons to step forward, step back, and play.
    """

    name: str
    label: str
    options: tuple[Any, ...]
    words: tuple[str, ...]
    start: Any
    kind: str = "slider"
    plays: bool = False


def slider(
    name: str, label: str, options: Sequence[Any] | Mapping[Any, str], start: Any, plays: bool = False
) -> Control:
    """Return a slider over numbers; a mapping gives each number a label. It starts at the option nearest to `start`."""
    if not isinstance(options, Mapping):
        options = {value: f"{value:,}" if isinstance(value, int) else f"{value:g}" for value in options}
    nearest = min(options, key=lambda option: abs(option - start))
    return Control(name, label, tuple(options), tuple(options.values()), nearest, plays=plays)


def round_numbers(low: float, high: float) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50, ... from `low` to `high`."""
    numbers = [float(f"{digit}e{power}") for power in range(-12, 16) for digit in (1, 2, 5)]
    return tuple(number for number in numbers if low * 0.999 <= number <= high * 1.001)


def powers_of_two(low: int, high: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... from `low` to `high`."""
    return tuple(2**power for power in range(64) if low <= 2**power <= high)


def choice(name: str, label: str, options: Sequence[str] | Mapping[Any, str], start: Any) -> Control:
    """Return a control that selects one item of a list. A mapping gives each option a label."""
    words = tuple(options.values()) if isinstance(options, Mapping) else tuple(options)
    return Control(name, label, tuple(options), words, start, "choice")


@dataclass(frozen=True)
class Button:
    """A button; `slow` is shown while it works. A website leaves out those that start real `ranks`."""

    name: str
    label: str
    slow: str = ""
    ranks: bool = False


class Explorer:
    """Controls, buttons, and a picture that is redrawn whenever you use one of them.

    A subclass has a `title` and a `draw` method, and a method `press_NAME` for each button. `explorer.set(ranks=8)` and
    `explorer.press("run")` do from Python what a learner does with the mouse. `unavailable` names the buttons that have
    no effect now, and `view` shows the explorer: its method `show` is called whenever the picture is redrawn.
    """

    title = "Explorer"
    help = ""
    unavailable: tuple[str, ...] = ()

    def __init__(self, controls: Sequence[Control], buttons: Sequence[Button] = ()) -> None:
        self.controls = {control.name: control for control in controls}
        self.buttons = tuple(buttons)
        self.values: dict[str, Any] = {control.name: control.start for control in controls}
        self.view: Any = None
        self.changed(set(self.controls))
        self.drawing = self.draw()

    def draw(self) -> Drawing:
        """Draw the picture for the current values."""
        raise NotImplementedError

    def changed(self, names: set[str]) -> None:
        """Update what depends on these values before they are drawn; for the first picture, `names` has all of them."""

    @property
    def said(self) -> str:
        """Return the text that the page shows with the picture; each line is a paragraph."""
        return self.drawing.alt

    def set(self, **values: Any) -> None:
        """Set values, as the controls do."""
        for name, value in values.items():
            if name not in self.controls:
                raise ValueError(f"there is no control {name!r}: choose among {', '.join(self.controls)}")
            if value not in (control := self.controls[name]).options:
                raise ValueError(f"{name}={value!r} is not offered: choose among {', '.join(control.words)}")
        different = {name for name, value in values.items() if self.values[name] != value}
        self.values.update(values)
        self.changed(different)
        self.redraw()

    def press(self, name: str) -> None:
        """Press a button."""
        if name not in {button.name for button in self.buttons}:
            raise ValueError(f"there is no button {name!r}: press {', '.join(b.name for b in self.buttons) or 'none'}")
        getattr(self, f"press_{name}")()
        self.redraw()

    def move(self, item: str, place: int) -> None:
        """Move an item of the picture to another place, in an explorer whose picture has such items."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw the current values, and show them in the view."""
        self.drawing = self.draw()
        if self.view is not None:
            self.view.show()

    def __repr__(self) -> str:
        return f"{self.title}. {self.drawing.alt}"

    def showcase(self) -> Drawing:
        """Return the picture to show if widgets cannot run."""
        return self.drawing

    def still(self) -> dict[str, str]:
        """Return the output that is stored in a notebook, for readers without a kernel."""
        drawing = self.showcase()
        return {
            "text/plain": f"{self.title}. {drawing.alt}",
            "text/html": element("div", STYLE, drawing.html, class_="course-still"),
            "image/svg+xml": drawing.alone,
        }

    def live(self) -> Any:
        """Return the widget for a notebook; None if `anywidget` is not installed."""
        if self.view is None:
            with suppress(ImportError):
                self.view = live_view()(self)
        return self.view

    def _ipython_display_(self) -> None:
        """Display the still picture and the widget, of which the style sheet shows only one."""
        from IPython.display import display

        # Two outputs, because a front end that finds no model replaces the widget's whole output with an error.
        display(self.still(), raw=True)
        if self.live() is not None:
            display(self.live())


# In JupyterLab, hide the still picture if a live widget follows it, and hide a widget that has no model.
STYLE = element(
    "style",
    ".jp-OutputArea-child:has(.course-still):has(+ .jp-OutputArea-child .course-widget) { display: none; } "
    ".jp-OutputArea-child:has(.course-still) + .jp-OutputArea-child:has(> .lm-Panel.jp-OutputArea-output)"
    ":not(:has(.course-widget)) { display: none; } ",
)


def whole_number(value: Any, name: str, low: int, high: int) -> int:
    """Return `value`, or raise an error with the allowed range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name}={value!r}: give a whole number from {low} to {high}")
    return value


THEME = {name: f"var(--course-{name})" for name in ("ink", "faint", "idle", "paper", "line")}
PAGE_STYLE = f".course-widget {{ {colors(THEME)} }}"  # the colors, which `shell.css` leaves out
HERE = Path(__file__).parent


class View:
    """The connection of an explorer to a page, in a notebook or on a website. `tell` receives new values, by name.

    `shell.js` shows the page. Both sides identify values by their indices in the lists of options.
    """

    def __init__(self, explorer: Explorer, tell: Callable[[Mapping[str, Any]], None], ranks: bool = True) -> None:
        """If `ranks` is False, leave out the buttons that would start processes."""
        self.explorer, self.tell = explorer, tell
        self.buttons = tuple(button for button in explorer.buttons if ranks or not button.ranks)

    def facts(self) -> dict[str, Any]:
        """Return what never changes."""
        buttons = [{"name": button.name, "label": button.label} for button in self.buttons]
        return {"title": self.explorer.title, "help": self.explorer.help, "buttons": buttons}

    def state(self) -> dict[str, Any]:
        """Return what changes whenever the picture is redrawn."""
        controls, values, drawing = self.explorer.controls, self.explorer.values, self.explorer.drawing
        shown = ("name", "label", "words", "kind", "plays")
        return {
            "controls": [{name: getattr(control, name) for name in shown} for control in controls.values()],
            "places": {name: control.options.index(values[name]) for name, control in controls.items()},
            "picture": drawing.in_page,
            "below": drawing.below,
            "said": self.explorer.said,
            "unavailable": list(self.explorer.unavailable),
        }

    def choose(self, places: Mapping[str, int]) -> None:
        """Apply the places of the page's controls."""
        options = {name: self.explorer.controls[name].options for name in places}
        # The page may not have the new options yet.
        self.explorer.set(**{name: options[name][min(place, len(options[name]) - 1)] for name, place in places.items()})

    def handle(self, message: Mapping[str, Any]) -> None:
        """Handle a move or a button press in the page."""
        if "move" in message:
            self.explorer.move(message["move"], message["to"])
            return
        name = message["press"]
        self.tell({"busy": next((button.slow for button in self.buttons if button.name == name), "")})
        try:  # the widget shows any error, because no cell waits for the result and could show it
            self.explorer.press(name)
        except KeyboardInterrupt:
            self.tell({"said": "Interrupted."})
        except Exception as error:
            self.tell({"said": f"{type(error).__name__}: {error}"})
        finally:
            self.tell({"busy": ""})


@cache
def live_view() -> type[Any]:
    """Return the class that shows an explorer in a notebook. Raises ImportError if `anywidget` is not installed.

    A change goes to the kernel, is drawn there, and comes back as text. This takes a few milliseconds, but the page,
    the stored picture and the tests share the drawing code.
    """
    import anywidget
    import traitlets

    class LiveView(anywidget.AnyWidget):
        """The page's model of an explorer: see `View`."""

        _esm = HERE / "shell.js"
        _css = f"{(HERE / 'shell.css').read_text()}\n{PAGE_STYLE}"

        title = traitlets.Unicode().tag(sync=True)
        help = traitlets.Unicode().tag(sync=True)
        controls = traitlets.List().tag(sync=True)
        buttons = traitlets.List().tag(sync=True)
        places = traitlets.Dict().tag(sync=True)
        picture = traitlets.Unicode().tag(sync=True)
        below = traitlets.Unicode().tag(sync=True)
        said = traitlets.Unicode().tag(sync=True)
        busy = traitlets.Unicode().tag(sync=True)
        unavailable = traitlets.List().tag(sync=True)

        def __init__(self, explorer: Explorer) -> None:
            super().__init__()
            self._view, self._telling = View(explorer, self._tell), False
            self._tell(self._view.facts())
            self.show()
            self.observe(self._chosen, names="places")
            self.on_msg(lambda _, message, __: self._view.handle(message))

        def __repr__(self) -> str:
            """Return the text to show below the still picture if there are no widgets."""
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

    return LiveView
