"""Shapes as SVG text, which a widget draws in a page or, standalone, in a stored notebook.

Shapes have class names instead of colors: a page sets the colors of its theme, and a standalone picture includes a
style sheet.

This module also formats numbers as text.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from course_lib.pictures.picture import BLOCKS, COLORS, INK, MEMORY, shaded


def round_numbers(low: float, high: float, digits: Sequence[float] = (1, 2, 5)) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50, ... from `low` to `high`."""
    powers = range(-12, 16)
    numbers = [float(f"{digit}e{power}") for power in powers for digit in digits]
    return tuple(number for number in numbers if low * 0.999 <= number <= high * 1.001)


def powers_of_two(low: int, high: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... from `low` to `high`."""
    return tuple(2**power for power in range(64) if low <= 2**power <= high)


def worded(options: Sequence[float], say) -> dict[float, str]:
    """Return each option with its label."""
    return {option: say(option) for option in options}


CHARACTER = 6.6  # the approximate width of a character, in a picture's units
READABLE = 0.86  # the smallest scale of a picture in a page, at which its letters from shell.css are 12 px
MARGIN = 10  # the margin around a standalone picture
VIRTUAL = ("forward", "backward", "weight-gradients", "recompute")  # what a virtual stage does
DARKEST = 3  # the shade of virtual stage 3 and all later ones
FIRST = (COLORS["forward"], COLORS["backward"], COLORS["communication"])
# One color for each of up to eight ranks; none is the green of messages.
CONTRIBUTORS = (*FIRST[:2], "#882255", "#56B4E9", "#D55E00", "#F0E442", "#CC79A7", "#B2DF8A")
LIGHT = {"ink": INK, "faint": "#595959", "idle": COLORS["idle"], "paper": "#FFFFFF", "line": "#8C8C8C"}
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


def element(tag: str, *children: str, **attributes: object) -> str:
    """Return `<tag attribute="...">children</tag>`. `class_` is `class`, `data_item` is `data-item`; omits None."""
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    written = "".join(f' {name}="{escape(_text(value))}"' for name, value in named.items())
    return f"<{tag}{written}>{''.join(children)}</{tag}>"


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def box(x: float, y: float, width: float, height: float, class_: str, **attributes: object) -> str:
    """Return a filled rectangle. Negative widths and heights become 0."""
    return element("rect", x=x, y=y, width=max(0.0, width), height=max(0.0, height), class_=class_, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, class_: str = "line", **attributes: object) -> str:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_, **attributes)


def path(points: Iterable[tuple[float, float]], class_: str) -> str:
    """Return a line through points."""
    # Rounded twice, because a logarithm's last digits depend on the machine, and the drawing must not.
    rounded = (f"{round(x, 6):.1f},{round(y, 6):.1f}" for x, y in points)
    return element("polyline", points=" ".join(rounded), class_=class_)


def text(x: float, y: float, words: str, class_: str = "ink", anchor: str = "start", **attributes: object) -> str:
    """Return words on the baseline `y`; `anchor` is start, middle or end."""
    return element("text", escape(words), x=x, y=y, class_=class_, text_anchor=anchor, **attributes)


def advance(letter: str) -> float:
    """Return roughly how wide a letter is in a page's type of 14 px."""
    return 4.0 if letter in "ijl.,'|" else 5.4 if letter in "frt- ()1" else 11.6 if letter in "mwMW" else 8.5


def legend(entries: Iterable[tuple[str, str]], x: float, y: float) -> str:
    """Return a row of (class, words) entries, with a box of the class's color before the words."""
    drawn = []
    for class_, words in entries:
        drawn += [box(x, y - 10, 12, 12, class_), text(x + 17, y, words)]
        x += 17 + sum(map(advance, words)) + 14
    return "".join(drawn)


def table(head: Iterable[str], rows: Iterable[Iterable[str]], caption: str) -> str:
    """Return an HTML table whose first column names its rows."""
    top = element("tr", *(element("th", escape(cell), scope="col") for cell in head))
    body = []
    for name, *values in rows:
        cells = [element("td", escape(cell)) for cell in values]
        body.append(element("tr", element("th", escape(name), scope="row"), *cells))
    return element("table", element("caption", escape(caption)), element("thead", top), element("tbody", *body))


@dataclass(frozen=True)
class Drawing:
    """Shapes on a sheet of this size, a description in `words`, and HTML to show below them.

    With `parts`, individual shapes have names, and a screen reader visits them one by one. `tips` lies over the shapes
    in a page, to show what the mouse points at; a stored picture omits it, because tooltips don't work there.
    """

    shapes: str
    width: float
    height: float
    words: str
    below: str = ""
    parts: bool = False
    tips: str = ""

    @property
    def in_page(self) -> str:
        """Return the SVG for a page that defines the colors."""
        # In a narrow window you scroll, so the picture stays legible. There is padding of .6rem on the right.
        least = f"min-width: calc({_text(READABLE * self.width)}px + .6rem)"
        role = "group" if self.parts else "img"
        return element("svg", self.shapes, self.tips, **self._attributes(), role=role, style=least)

    @property
    def alone(self) -> str:
        """Return a standalone SVG for a file or a stored output, in light colors and with a background."""
        paper = box(-MARGIN, -MARGIN, self.width + 2 * MARGIN, self.height + 2 * MARGIN, "paper")
        style = element("style", f"svg {{ font: 13px {FONT}; }} {colors(LIGHT)}")
        xml = {"xmlns": "http://www.w3.org/2000/svg", "role": "img"}
        return element("svg", style, paper, self.shapes, **self._attributes(MARGIN), **xml)

    @property
    def html(self) -> str:
        """Return an image with its alt text, which GitHub, nbviewer, nbconvert and JupyterLab all show."""
        source = base64.b64encode(self.alone.encode()).decode()
        style = "max-width: 100%; height: auto"
        image = f'<img alt="{escape(self.words)}" style="{style}" src="data:image/svg+xml;base64,{source}">'
        return image + self.below

    def _attributes(self, margin: int = 0) -> dict[str, object]:
        width, height = float(self.width + 2 * margin), float(self.height + 2 * margin)
        size = f"{-margin} {-margin} {_text(width)} {_text(height)}"
        return {"viewBox": size, "width": width, "height": height, "aria_label": self.words}


def colors(theme: dict[str, str]) -> str:
    """Return the style sheet with each class's color. `theme` has the colors that differ between light and dark."""
    fills = {**COLORS, **MEMORY, **{f"rank{n}": color for n, color in enumerate(CONTRIBUTORS)}}
    fills |= BLOCKS
    fills |= {name: theme[name] for name in ("ink", "faint", "idle", "paper")}
    rules = [f".{name.replace(' ', '-')} {{ fill: {color}; }}" for name, color in fills.items()]
    rules += [
        f".{kind}.shade{number} {{ fill: {shaded(COLORS[kind.replace('-', ' ')], number)}; }}"
        for kind in VIRTUAL
        for number in range(1, DARKEST + 1)
    ]
    strokes = {"line": theme["line"], "curve": COLORS["forward"], "message": COLORS["communication"]}
    rules += [f".{name} {{ stroke: {color}; fill: none; }}" for name, color in strokes.items()]
    return " ".join(
        [
            *rules,
            ".on-dark { fill: #FFFFFF; } .on-light { fill: #000000; }",
            ".curve { stroke-width: 2.5; } .message { stroke-width: 2.5; } .head { fill: #009E73; }",
            f".dashed {{ stroke: {theme['ink']}; stroke-dasharray: 5 4; fill: none; }}",
            f".frame {{ stroke: {theme['line']}; fill: none; }}",
            f".whole {{ stroke: {theme['ink']}; stroke-width: 2.5; fill: none; }}",
            f".stuck {{ fill: none; pointer-events: all; stroke: {theme['ink']}; stroke-dasharray: 3 3; }}",
            f".point {{ fill: #D55E00; stroke: {theme['paper']}; stroke-width: 1.5; }}",
            ".tip { fill: transparent; } .small { font-size: 12px; } .strong { font-weight: 600; }",
        ]
    )
