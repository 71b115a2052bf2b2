"""A figure that shows itself in a notebook, and says in words what is on it."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

DPI = 144


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

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        width, height = (round(inches * DPI / 2) for inches in self.figure.get_size_inches())
        data = {"image/png": self.png(), "text/plain": self.alt}
        return data, {"image/png": {"alt": self.alt, "width": width, "height": height}}
