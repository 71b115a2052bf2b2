"""Shapes as SVG text, which a widget draws in a page or, standalone, in a stored notebook.

Shapes have class names instead of colors: a page sets the colors of its theme, and a standalone picture includes a
style sheet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path

from course_lib.drawing.picture import BLOCKS, COLORS, INK, MEMORY, OTHERS, Displayed, image_html, shaded

READABLE = 0.86  # the smallest scale of a picture in a page, at which its letters from shell.css are 12 px
MARGIN = 4  # the margin around a standalone picture
SHEET = 694  # the width of a whole picture; with margins, its letters of 13 px have 12 where a page shows it at 648 px
VIRTUAL = ("forward", "backward", "weight-gradients", "recompute")  # what a virtual stage does
DARKEST = 3  # the shade of virtual stage 3 and all later ones
# One color for each of up to eight ranks; none is the green of messages.
CONTRIBUTORS = ("#0072B2", "#E69F00", "#882255", "#56B4E9", "#D55E00", "#F0E442", "#CC79A7", "#B2DF8A")
LIGHT = {"ink": INK, "faint": "#595959", "idle": COLORS["idle"], "paper": "#FFFFFF", "line": "#8C8C8C"}
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
DIAGRAMS = Path(__file__).parent / "diagrams"


def element(tag: str, *children: str, **attributes: object) -> str:
    """Return `<tag attribute="...">children</tag>`. `class_` is `class`, `data_item` is `data-item`; omits None."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
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


def breadth(words: str) -> float:
    """Return roughly how wide words are in a page's type of 14 px."""
    narrow, thin, wide = "ijl.,'|", "frt- ()", "mwMW"
    return sum(4.0 if c in narrow else 5.4 if c in thin else 11.6 if c in wide else 8.5 for c in words)


def legend(entries: Iterable[tuple[str, str]], x: float, y: float) -> str:
    """Return a row of (class, words) entries, with a box of the class's color before the words."""
    drawn = []
    for class_, words in entries:
        drawn += [box(x, y - 10, 12, 12, class_), text(x + 17, y, words)]
        x += 17 + breadth(words) + 14
    return "".join(drawn)


def bar(x: float, y: float, height: float, parts: Iterable[tuple[str, float, str]], after: str = "") -> str:
    """Return the parts of a bar side by side: (class, width, words), with the words where they fit.

    `after` is written to the right of the last one.
    """
    shapes, middle = [], y + height / 2 + 4.5
    for class_, width, words in parts:
        shapes.append(box(x, y, width - 1, height, class_))
        if words and breadth(words) + 2 <= width:
            ink = "on-dark" if class_ in ("parameters", "forward") else "on-light"
            shapes.append(text(x + width / 2, middle, words, ink, "middle"))
        x += width
    return "".join(shapes) + (text(x + 6, middle, after, "ink strong") if after else "")


def table(head: Iterable[str], rows: Iterable[Iterable[str]], caption: str) -> str:
    """Return an HTML table whose first column names its rows."""
    top = element("tr", *(element("th", escape(cell), scope="col") for cell in head))
    body = []
    for name, *values in rows:
        cells = [element("td", escape(cell)) for cell in values]
        body.append(element("tr", element("th", escape(name), scope="row"), *cells))
    return element("table", element("caption", escape(caption)), element("thead", top), element("tbody", *body))


@dataclass(frozen=True, repr=False)
class Drawing(Displayed):
    """Shapes on a sheet of this size, their text description `alt`, and HTML to show below them.

    With `parts`, individual shapes have names, and a screen reader visits them one by one. `tips` lies over the shapes
    in a page, to show what the mouse points at; a stored picture omits it, because tooltips don't work there.
    """

    shapes: str
    width: float
    height: float
    alt: str
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
        width, height = (12 / 13 * (side + 2 * MARGIN) for side in (self.width, self.height))
        return image_html("svg+xml", self.alone.encode(), self.alt, width, height) + self.below

    def save(self, path: str | Path) -> None:
        """Write the picture to an SVG file."""
        Path(path).write_text(self.alone, encoding="utf-8")

    def _attributes(self, margin: int = 0) -> dict[str, object]:
        width, height = float(self.width + 2 * margin), float(self.height + 2 * margin)
        size = f"{-margin} {-margin} {_text(width)} {_text(height)}"
        return {"viewBox": size, "width": width, "height": height, "aria_label": self.alt}


def diagram(name: str) -> Drawing:
    """Return a diagram that is always the same: a file in the folder `diagrams`, whose title is its description."""
    files = {file.stem: file for file in sorted(DIAGRAMS.glob("*.svg"))}
    if name not in files:
        raise ValueError(f"there is no diagram {name!r}: choose among {', '.join(files)}")
    shapes = files[name].read_text(encoding="utf-8")
    found = re.match(r'<svg width="(\d+)" height="(\d+)".*?<title>(.*?)</title>', shapes, re.DOTALL)
    assert found is not None, files[name]
    return Drawing(shapes, int(found[1]), int(found[2]), unescape(found[3]))


def colors(theme: dict[str, str]) -> str:
    """Return the style sheet with each class's color. `theme` has the colors that differ between light and dark."""
    fills = {**COLORS, **MEMORY, **BLOCKS, **{f"rank{n}": color for n, color in enumerate(CONTRIBUTORS)}}
    fills |= {"starting": OTHERS[2], "gathering": OTHERS[0]}  # parts of an update
    fills |= {name: theme[name] for name in ("ink", "faint", "idle", "paper")}
    for kind in VIRTUAL:
        for number in range(1, DARKEST + 1):
            fills[f"{kind}.shade{number}"] = shaded(COLORS[kind.replace("-", " ")], number)
    rules = [f".{name.replace(' ', '-')} {{ fill: {color}; }}" for name, color in fills.items()]
    strokes = {"line": theme["line"], "curve": COLORS["forward"], "message": COLORS["communication"]}
    rules += [f".{name} {{ stroke: {color}; fill: none; }}" for name, color in strokes.items()]
    ink, lines, paper = theme["ink"], theme["line"], theme["paper"]
    return f"""{" ".join(rules)}
        .on-dark {{ fill: #FFFFFF; }} .on-light {{ fill: #000000; }}
        .curve {{ stroke-width: 2.5; }} .message {{ stroke-width: 2.5; }} .head {{ fill: #009E73; }}
        .dashed {{ stroke: {ink}; stroke-dasharray: 5 4; fill: none; }} .frame {{ stroke: {lines}; fill: none; }}
        .whole {{ stroke: {ink}; stroke-width: 2.5; fill: none; }}
        .stuck {{ fill: none; pointer-events: all; stroke: {ink}; stroke-dasharray: 3 3; }}
        .point {{ fill: #D55E00; stroke: {paper}; stroke-width: 1.5; }}
        .tip {{ fill: transparent; }} .small {{ font-size: 12px; }} .strong {{ font-weight: 600; }}"""
