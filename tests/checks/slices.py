"""The cells of a lesson that an expression needs, and no others: so that one claim can be run without the whole lesson.

A cell is needed if it defines, last before the place, a name that a needed cell uses. What a cell does to an object
without naming it is not seen; the whole lesson is nbval's to run.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence


def defined(tree: ast.AST) -> set[str]:
    """The names that a cell's top level binds."""
    names: set[str] = set()
    for node in (tree, *_top_level(tree)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def used(tree: ast.AST) -> set[str]:
    """The names that a cell reads, in its functions, too."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return found - vars(builtins).keys()


def needed(cells: Sequence[str], place: int) -> list[int]:
    """The places of the cells that the one at `place` needs, in order, and its own."""
    trees = [ast.parse(cell) for cell in cells]
    binds = [defined(tree) for tree in trees]
    wanted, found = [place], {place}
    while wanted:
        at = wanted.pop()
        for name in used(trees[at]):
            before = [earlier for earlier in range(at) if name in binds[earlier]]
            if before and before[-1] not in found and not (name in binds[at] and _binds_first(trees[at], name)):
                found.add(before[-1])
                wanted.append(before[-1])
    return sorted(found)


def _top_level(tree: ast.AST) -> list[ast.AST]:
    """All nodes outside of functions and classes, and these themselves."""
    nodes: list[ast.AST] = []
    for child in ast.iter_child_nodes(tree):
        nodes.append(child)
        if not isinstance(child, (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.comprehension)):
            nodes += _top_level(child)
    return nodes


def _binds_first(tree: ast.AST, name: str) -> bool:
    """Whether a cell binds a name in a statement before any that reads it."""
    for statement in getattr(tree, "body", []):
        if isinstance(statement, ast.For) and name in defined(statement.target):
            return name not in used(statement.iter)
        if name in used(statement):
            return False
        if name in defined(ast.Module([statement], [])):
            return True
    return False
