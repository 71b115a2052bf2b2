"""Small pieces of HTML that are safe to show: every text of somebody else's is only text."""

from __future__ import annotations

import html
import re

CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
DIRECTIONS = "\u202a-\u202e\u2066-\u2069"  # with which a name can pose as another one
UNPRINTABLE = re.compile(f"[{CONTROLS}{DIRECTIONS}\ud800-\udfff\ufffe\uffff]")


def plain(words: str) -> str:
    """A text for a page: escaped, without what is no character at all."""
    return html.escape(UNPRINTABLE.sub("\ufffd", words))


def with_code(words: str) -> str:
    """A sentence of ours or of a student's, with `code` as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", plain(words))


def marked(words: str) -> str:
    """A sentence of ours, with `code` as code and *words* that are stressed."""
    pieces = re.split(r"(<code>.*?</code>)", with_code(words))
    stressed = [
        piece if piece.startswith("<code>") else re.sub(r"\*([^*\s][^*]*)\*", r"<em>\1</em>", piece) for piece in pieces
    ]
    return "".join(stressed)
