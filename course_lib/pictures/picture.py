"""A figure that shows itself in a notebook and says in words what is on it, and the colors of the whole course.

One color per meaning. They are Okabe and Ito's: safe for color-blind readers. A page of the website has no matplotlib,
so this module imports it only where a figure is written.
"""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "forward": "#0072B2",
    "backward": "#E69F00",
    "weight gradients": "#D55E00",  # of a backward pass that is split
    "recompute": "#56B4E9",  # a forward pass made again
    "communication": "#009E73",
    "send": "#009E73",
    "receive": "#7FCEB9",  # communication too, seen from the other end
    "exposed communication": "#004D38",  # what no computation hides
    "input wait": "#882255",
    "update": "#CC79A7",
    "idle": "#D9D9D9",
}
OTHERS = ("#332288", "#F0E442", "#8C6BB1", "#7F7F7F", "#B2DF8A", "#999933")
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # curves, in order
MEMORY = {"parameters": "#0072B2", "gradients": "#E69F00", "optimizer": "#CC79A7", "activations": "#56B4E9"}
BLOCKS = {"way-in": "#B2DF8A", "layer": "#56B4E9", "way-out": "#F0E442"}
INK = "#333333"


def colours_for(names: list[str]) -> dict[str, str]:
    """A colour for each name: the course's own where the name has a meaning, else the next free one."""
    strangers = [name for name in names if name not in COLOURS]
    return {name: COLOURS[name] if name in COLOURS else OTHERS[strangers.index(name) % len(OTHERS)] for name in names}


DPI = 144
POINTS_PER_INCH = 72
EMS_PER_INCH = 5.5  # of JupyterLab's letters: some 650 pixels for nine inches


@dataclass(frozen=True, repr=False)
class Picture:
    """A matplotlib `figure` and its description `alt`."""

    figure: Figure
    alt: str

    def __repr__(self) -> str:
        return self.alt

    def save(self, path: str | Path) -> None:
        """Write the picture to a file; the ending decides the format."""
        self.figure.savefig(path, dpi=DPI)

    def png(self) -> bytes:
        """The picture as PNG."""
        file = io.BytesIO()
        self.figure.savefig(file, format="png", dpi=DPI)
        return file.getvalue()

    def svg(self) -> str:
        """The picture as SVG, the same for the same figure; letters are outlines, so that they fit on every machine."""
        import matplotlib

        file = io.StringIO()
        with matplotlib.rc_context({"svg.hashsalt": "course", "svg.fonttype": "path"}):
            self.figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        return file.getvalue()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """An image in HTML: that is where JupyterLab, GitHub and nbconvert keep the words for those who cannot see it.

        Its width grows with the letters around it. The paper is white on a dark page, too: the colours are made for it.
        """
        width, height = self.figure.get_size_inches()
        image = base64.b64encode(self.svg().encode()).decode()
        style = f"width:{width * EMS_PER_INCH:g}em;max-width:100%;height:auto;background:white;border-radius:4px"
        size = f'width="{width * POINTS_PER_INCH:.0f}" height="{height * POINTS_PER_INCH:.0f}"'
        shown = f'<img alt="{html.escape(self.alt)}" {size} style="{style}" src="data:image/svg+xml;base64,{image}">'
        return {"text/html": shown, "text/plain": self.alt}
