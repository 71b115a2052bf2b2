"""A figure that a notebook displays with a text description, and the colors of the whole course.

Each color has one meaning. They are Okabe and Ito's, safe for color-blind readers. The website's pages have no
matplotlib, so this module imports it only to write a figure.
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

COLORS = {
    "forward": "#0072B2",
    "backward": "#E69F00",
    "weight gradients": "#D55E00",  # in a split backward pass
    "recompute": "#56B4E9",  # a repeated forward pass
    "communication": "#009E73",
    "send": "#009E73",
    "receive": "#7FCEB9",  # the receiving side of communication
    "exposed communication": "#004D38",  # communication that no computation hides
    "input wait": "#882255",
    "update": "#CC79A7",
    "idle": "#D9D9D9",
}
OTHERS = ("#332288", "#F0E442", "#8C6BB1", "#7F7F7F", "#B2DF8A", "#999933")
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # curves, in order
MEMORY = {"parameters": "#0072B2", "gradients": "#E69F00", "optimizer": "#CC79A7", "activations": "#56B4E9"}
BLOCKS = {"way-in": "#B2DF8A", "layer": "#56B4E9", "way-out": "#F0E442"}
INK = "#333333"
LETTERS = 12  # points, the smallest letters of a picture: 12 pixels if 9 inches are 648 pixels
SHADE = 0.7  # the brightness of a virtual stage, relative to the previous one


def colors_for(names: list[str]) -> dict[str, str]:
    """Return a color for each name: the course's color if the name has one, otherwise the next free one."""
    strangers = [name for name in names if name not in COLORS]
    return {name: COLORS[name] if name in COLORS else OTHERS[strangers.index(name) % len(OTHERS)] for name in names}


def shaded(color: str, virtual: int) -> str:
    """Return the color of a kind of work on a virtual stage: the later the stage, the darker."""
    parts = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part * SHADE**virtual):02X}" for part in parts)


def block_name(number: int, blocks: int) -> tuple[str, str]:
    """Return a block's short name and its key in `BLOCKS`: the input block, an LSTM layer, or the output block."""
    if number == 0:
        return "embedding", "way-in"
    return ("head", "way-out") if number == blocks - 1 else (str(number), "layer")


DPI = 160  # a little more than twice the page's pixels, for projectors
SHADES = 128  # enough for the course's colors and the edges of letters
POINTS_PER_INCH = 72
EMS_PER_INCH = 5.5  # with JupyterLab's font, about 650 pixels for nine inches


@dataclass(frozen=True, repr=False)
class Picture:
    """A matplotlib `figure` and its text description, `alt`."""

    figure: Figure
    alt: str

    def __post_init__(self) -> None:
        """Enlarge small letters so that all text is legible."""
        from matplotlib.text import Text

        for axes in self.figure.axes:
            axes.tick_params(labelsize=LETTERS)
        for words in self.figure.findobj(Text):
            words.set_fontsize(max(LETTERS, words.get_fontsize()))

    def __repr__(self) -> str:
        return self.alt

    def save(self, path: str | Path) -> None:
        """Write the picture to a file; the extension decides the format."""
        self.figure.savefig(path, dpi=DPI)

    def png(self) -> bytes:
        """Return the picture as PNG with at most 128 colors: about a third of the bytes that matplotlib would write."""
        from PIL import Image

        drawn, small = io.BytesIO(), io.BytesIO()
        self.figure.savefig(drawn, format="png", dpi=DPI)
        Image.open(drawn).convert("RGB").quantize(SHADES, dither=Image.Dither.NONE).save(small, "png", optimize=True)
        return small.getvalue()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return an HTML image, which keeps its alt text in JupyterLab, and a plain image for viewers without HTML.

        Both are PNG: viewers that sanitize a notebook's outputs, such as GitHub's, have dropped or damaged SVG. The
        width scales with the surrounding text. The background is white even on a dark page, because the colors need it.
        """
        width, height = self.figure.get_size_inches()
        image = base64.b64encode(self.png()).decode()
        style = f"width:{width * EMS_PER_INCH:g}em;max-width:100%;height:auto;background:white;border-radius:4px"
        size = f'width="{width * POINTS_PER_INCH:.0f}" height="{height * POINTS_PER_INCH:.0f}"'
        shown = f'<img alt="{html.escape(self.alt)}" {size} style="{style}" src="data:image/png;base64,{image}">'
        return {"text/html": shown, "image/png": image, "text/plain": self.alt}
