"""A figure that shows itself in a notebook, and says in words what is on it."""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

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
