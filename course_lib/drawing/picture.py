"""A figure that a notebook displays with a text description, and the colors of the whole course.

Each color has one meaning. They are Okabe and Ito's, safe for color-blind readers. The website's pages have no
matplotlib, so this module imports it only to write a figure.
"""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass
from functools import cached_property
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
DPI = 160  # a little more than twice the page's pixels, for projectors
POINTS_PER_INCH = 72
POINTS_PER_EM = 13.1  # with JupyterLab's font, about 650 pixels for nine inches


def colors_for(names: list[str]) -> dict[str, str]:
    """Return a color for each name: the course's color if the name has one, otherwise the next free one."""
    strangers = [name for name in names if name not in COLORS]
    return {name: COLORS[name] if name in COLORS else OTHERS[strangers.index(name) % len(OTHERS)] for name in names}


def shaded(color: str, virtual: int) -> str:
    """Return the color of a kind of work on a virtual stage: the later the stage, the darker."""
    parts = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part * SHADE**virtual):02X}" for part in parts)


def image_html(kind: str, image: bytes, alt: str, width: float, height: float) -> str:
    """Return an HTML image with its alt text; `width` and `height` are in points.

    It grows with the surrounding text. The background is white even on a dark page, because the colors need it.
    """
    style = f"width:{width / POINTS_PER_EM:.3g}em;max-width:100%;height:auto;background:white;border-radius:4px"
    source = f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
    size = f'width="{width:.0f}" height="{height:.0f}"'
    return f'<img alt="{html.escape(alt)}" {size} style="{style}" src="{source}">'


class Displayed:
    """What a notebook displays as an image, with a text description, `alt`, for readers who cannot see it."""

    alt: str

    @property
    def html(self) -> str:
        """Return the image as HTML, which keeps its alt text in JupyterLab."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.alt

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {"text/html": self.html, "text/plain": self.alt}


@dataclass(frozen=True, repr=False)
class Picture(Displayed):
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

    def save(self, path: str | Path) -> None:
        """Write the picture to a file; the extension decides the format."""
        self.figure.savefig(path, dpi=DPI)

    @cached_property
    def png(self) -> bytes:
        """The picture as PNG with at most 128 colors: about a third of the bytes that matplotlib would write."""
        from PIL import Image

        drawn, small = io.BytesIO(), io.BytesIO()
        self.figure.savefig(drawn, format="png", dpi=DPI)
        Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(small, "png", optimize=True)
        return small.getvalue()

    @property
    def html(self) -> str:
        width, height = self.figure.get_size_inches() * POINTS_PER_INCH
        return image_html("png", self.png, self.alt, width, height)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Add a plain image for viewers without HTML, such as LaTeX."""
        return {**super()._repr_mimebundle_(), "image/png": base64.b64encode(self.png).decode()}
