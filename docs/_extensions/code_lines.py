"""Lines of code that know their indentation, so that what wraps continues to the right of where the line begins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pygments.formatters import HtmlFormatter
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    """Highlight all code of the pages with such lines."""
    app.connect("builder-inited", _use)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class IndentedLines(HtmlFormatter):
    """HTML in which an indented line says by how much; site.css wraps it."""

    def wrap(self, source: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """Mark the lines before all of them are put into their box."""
        return super().wrap((is_code, indented(line) if is_code else line) for is_code, line in source)


def indented(line: str) -> str:
    """A line of HTML with its indentation; its end stays outside, so that it is copied as it was written."""
    words = re.sub(r"<[^>]*>", "", line)
    spaces = len(words) - len(words.lstrip(" "))
    if not spaces or not words.strip():
        return line
    return f'<span class="indented" style="--indent:{spaces}">{line.rstrip()}</span>\n'


def _use(app: Sphinx) -> None:
    highlighter: Any = getattr(app.builder, "highlighter", None)
    if highlighter:
        highlighter.formatter = IndentedLines
