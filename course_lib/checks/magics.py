"""A cell's text as the Python that IPython would run: which lines are magics, only IPython knows."""

from __future__ import annotations

import ast
import re

from course_lib.checks.inside.jupyter import RUN_THEIR_CODE

LONGEST_CELL = 100_000  # characters that are searched for magics: IPython reads the whole of a cell again for each
CELL_MAGIC = re.compile(r"\s*%%(\w+)[^\n]*")


def python_of(text: str) -> str:
    """The cell, with each magic as a call of `get_ipython()`; line by line where it was. Python stays as it is."""
    if _is_python(text) or len(text) > LONGEST_CELL:
        return text
    begins = CELL_MAGIC.match(text)
    if begins and begins[1] in RUN_THEIR_CODE:
        text = "\n" * begins[0].count("\n") + text[begins.end() :]
        if _is_python(text):
            return text
    above = len(text) - len(text.lstrip())
    return "\n" * text.count("\n", 0, above) + _transformed(text)


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _transformed(text: str) -> str:
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ImportError:  # there is no Jupyter here: what begins like a magic is one
        return "\n".join("" if line.lstrip()[:1] in ("%", "!") else line for line in text.split("\n"))
    try:
        return TransformerManager().transform_cell(text)
    except (SyntaxError, ValueError, RecursionError):
        return text
