"""HTML snippets that are safe to show: text from other people is always escaped."""

from __future__ import annotations

import html
import re

CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
DIRECTIONS = "\u202a-\u202e\u2066-\u2069"  # a name could use these to look like a different name
UNPRINTABLE = re.compile(f"[{CONTROLS}{DIRECTIONS}\ud800-\udfff\ufffe\uffff]")


def plain(words: str) -> str:
    """Return a text escaped for HTML, with unprintable characters replaced."""
    return html.escape(UNPRINTABLE.sub("\ufffd", words))


def with_code(words: str) -> str:
    """Return a sentence, ours or a student's, as HTML, with `code` as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", plain(words))


def marked(words: str) -> str:
    """Return one of our sentences as HTML, with `code` as code and *words* emphasized."""
    pieces = re.split(r"(<code>.*?</code>)", with_code(words))
    stressed = [
        piece if piece.startswith("<code>") else re.sub(r"\*([^*\s][^*]*)\*", r"<em>\1</em>", piece) for piece in pieces
    ]
    return "".join(stressed)
