"""A cell for live ranks: which names it uses, how a rank runs it, and what is shown for each rank."""

from __future__ import annotations

import ast
import builtins
import contextlib
import linecache
import symtable
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from course_lib.launcher.notebook.run import Run
from course_lib.launcher.wire import pickling

MAX_CHARACTERS = 20_000  # of a value in the output
MAX_BYTES = 1 << 20  # of a value that is sent with a cell's result; `team.pull` has no limit
MAX_WIDTH = 120  # columns of a notebook's output


def names_in(code: str, name: str = "<cell>") -> list[str]:
    """Return the names that a cell reads before it assigns them, in order."""
    used: dict[str, None] = {}
    bound: set[str] = set()
    for statement in ast.parse(code, name).body:
        reads, writes = _reads_and_writes(statement)
        reads_first = isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr))
        hidden = bound if reads_first else bound | writes
        used |= dict.fromkeys(read for read in reads if read not in hidden)
        bound |= writes
    return [read for read in used if not hasattr(builtins, read)]


def _reads_and_writes(statement: ast.stmt) -> tuple[list[str], set[str]]:
    """Return the global names that one statement reads, including in functions it defines, and those it assigns."""
    table = symtable.symtable(ast.unparse(statement), "<cell>", "exec")
    symbols = table.get_symbols()
    writes = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
    reads = [symbol.get_name() for symbol in symbols if symbol.is_referenced()]
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        reads.append(statement.target.id)
    inner = table.get_children()  # of functions and classes; the loop appends theirs
    for child in inner:
        inner += child.get_children()
        reads += [symbol.get_name() for symbol in child.get_symbols() if symbol.is_global() and symbol.is_referenced()]
    return reads, writes


def execute(code: str, name: str, namespace: dict[str, Any]) -> Any:
    """Run a cell and return its last expression, or None if it ends with a statement or a semicolon."""
    linecache.cache[name] = source_entry(code, name)
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    if not isinstance(last, ast.Expr):
        return None
    value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    return None if code.rstrip().endswith(";") else value


def source_entry(code: str, name: str) -> tuple:
    """Return the `linecache` entry of a cell, so that tracebacks show its lines."""
    return (len(code), None, code.splitlines(keepends=True), name)


@dataclass(frozen=True)
class OnRank:
    """A stand-in for a value that is too large to send at once, or cannot be sent. `team.pull("_")` asks for it."""

    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Shown:
    """What a rank's last expression looks like, and the value itself if it is small and can be sent."""

    text: str | None = None
    packed: bytes | None = None

    @property
    def value(self) -> Any:
        """The value that the rank has sent, or its stand-in."""
        if self.text is None:
            return None
        return OnRank(self.text) if self.packed is None else pickling.unpack(self.packed)


def show(value: Any) -> Shown:
    """Return how a value looks on this rank, and its pickled form if that is at most a megabyte."""
    if value is None:
        return Shown()
    text, packed = repr(value), None
    text = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} ..."
    if not hasattr(value, "state_dict") and getattr(value, "nbytes", 0) <= MAX_BYTES:
        with contextlib.suppress(pickling.CannotSend):
            packed = pickling.pack_value(value)
    return Shown(text, packed if packed and len(packed) <= MAX_BYTES else None)


@dataclass(frozen=True, repr=False)
class CellRun(Run):
    """The value of a cell's last expression on each rank: `run[2]` is rank 2's. Prints the values side by side.

    It has everything that a `Run` has. For a rank that did not run the cell, the value is None.
    """

    texts: Mapping[int, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return side_by_side(self.texts) if self.texts else f"CellRun of {len(self)} ranks, without a value"


def side_by_side(texts: Mapping[int, str]) -> str:
    """Return the ranks' texts: one line per rank, or columns if a text has several lines and they fit."""
    columns = [[f"rank {rank}", *(text.splitlines() or [""])] for rank, text in sorted(texts.items())]
    if all(len(column) == 2 for column in columns):
        width = max(len(head) for head, _ in columns)
        return "\n".join(f"{head:<{width}}  {line}" for head, line in columns)
    widths = [max(map(len, column)) for column in columns]
    if sum(widths) + 3 * (len(widths) - 1) > MAX_WIDTH:
        return "\n".join("\n".join(column) for column in columns)
    rows = zip_longest(*columns, fillvalue="")
    padded = (" | ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in padded)
