"""Small changes to our own solutions, as slips of the pen make them: `python -m tests.checks.mutants 02.3`.

A mutant that a check accepts is judged once more on a wide sample of the exercise's domain. If it is refused there, the
check has too few cases that bite: it is a survivor. If not, it does what the exercise asks, too.
"""

from __future__ import annotations

import ast
import copy
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from textwrap import dedent

from course_lib.checks.catalog import exercises
from course_lib.checks.exercise import Exercise
from course_lib.checks.notebooks import answer_cell
from tests.checks.tried import names_in, report_on

WIDE = range(101, 109)  # seeds
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPPOSITES = {"max": "min", "min": "max"}
DROPPED = ("group", "src", "dst", "op", "dim", "keepdim", "dtype")  # arguments that are easily forgotten


@dataclass(frozen=True)
class Mutant:
    """A solution with one thing changed."""

    line: str
    change: str
    answer: Callable = field(repr=False)


def tally(exercise: Exercise, most: int | None = None) -> dict[str, list[Mutant]]:
    """What becomes of all mutants, or of `most` of them, chosen by chance: refused, survives, right."""
    found: dict[str, list[Mutant]] = {"refused": [], "survives": [], "right": []}
    tried = list(mutants(exercise))
    for mutant in tried if most is None else random.Random(exercise.number).sample(tried, min(most, len(tried))):
        if not report_on(exercise, mutant.answer).passed:
            found["refused"].append(mutant)
        elif any(not report_on(exercise, mutant.answer, seed).passed for seed in WIDE):
            found["survives"].append(mutant)
        else:
            found["right"].append(mutant)
    return found


def mutants(exercise: Exercise) -> Iterator[Mutant]:
    """Every solution that differs from ours in one place."""
    text = dedent(answer_cell(exercise))
    tree = ast.parse(text)
    for place, node in enumerate(ast.walk(tree)):
        for change, mutate in _changes(node):
            changed = copy.deepcopy(tree)
            twin = next(other for index, other in enumerate(ast.walk(changed)) if index == place)
            mutate(twin)
            try:
                code = compile(ast.fix_missing_locations(changed), f"<mutant of {exercise.number}>", "exec")
                names = {**names_in(exercise.lesson, False), "__name__": "__main__"}
                exec(code, names)
            except Exception:
                continue  # it does not even run
            line = text.splitlines()[getattr(node, "lineno", 1) - 1].strip()
            yield Mutant(line, change, names[exercise.answer])


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable]]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "dropped", lambda n: setattr(n, "value", ast.Constant(None))
    if isinstance(node, ast.AugAssign):
        neutral = 1 if isinstance(node.op, (ast.Mult, ast.Div, ast.FloorDiv)) else 0
        yield "adds nothing", lambda n: setattr(n, "value", ast.Constant(neutral))
    if isinstance(node, ast.BinOp):
        yield from _of_operation(node)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        other = COMPARISONS[type(node.ops[0])]
        yield f"compared by {other.__name__}", lambda n: setattr(n, "ops", [other(), *n.ops[1:]])
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 100:
        yield "one more", lambda n: setattr(n, "value", n.value + 1)
        yield "one fewer", lambda n: setattr(n, "value", n.value - 1)
    if isinstance(node, ast.Call):
        yield from _of_call(node)
    if isinstance(node, (ast.If, ast.IfExp)):
        yield "condition turned round", lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
    if isinstance(node, ast.Slice):
        yield from _of_slice(node)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id == "rank":
        yield "the number of ranks for the rank", lambda n: setattr(n, "id", "ranks")


def _of_slice(node: ast.Slice) -> Iterator[tuple[str, Callable]]:
    if node.upper is not None:
        yield "without the last", lambda n: setattr(n, "upper", ast.BinOp(n.upper, ast.Sub(), ast.Constant(1)))
    if node.lower is not None:
        yield "from one later", lambda n: setattr(n, "lower", ast.BinOp(n.lower, ast.Add(), ast.Constant(1)))
        yield "from the start", lambda n: setattr(n, "lower", None)
    if node.step is not None:
        yield "every one", lambda n: setattr(n, "step", None)


def _of_operation(node: ast.BinOp) -> Iterator[tuple[str, Callable]]:
    if isinstance(node.op, ast.Add):
        yield "minus", lambda n: setattr(n, "op", ast.Sub())
    if isinstance(node.op, ast.Sub):
        yield "plus", lambda n: setattr(n, "op", ast.Add())
    if isinstance(node.op, (ast.Div, ast.FloorDiv)):
        yield "not divided", lambda n: (setattr(n, "op", ast.Mult()), setattr(n, "right", ast.Constant(1)))
    if isinstance(node.op, ast.Mult):
        yield "not multiplied", lambda n: setattr(n, "right", ast.Constant(1))
    if isinstance(node.op, ast.Mod):
        yield "not modulo", lambda n: (setattr(n, "op", ast.Mult()), setattr(n, "right", ast.Constant(1)))


def _of_call(node: ast.Call) -> Iterator[tuple[str, Callable]]:
    for place, keyword in enumerate(node.keywords):
        if keyword.arg in DROPPED:
            yield f"without {keyword.arg}=", lambda n, place=place: n.keywords.pop(place)
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in OPPOSITES:
        yield f"{OPPOSITES[name]}", lambda n: setattr(n.func, "id", OPPOSITES[name])
    if name == "range" and node.args:
        place = min(len(node.args) - 1, 1)
        minus = lambda n: n.args.__setitem__(place, ast.BinOp(n.args[place], ast.Sub(), ast.Constant(1)))  # noqa: E731
        yield "without the last round", minus


if __name__ == "__main__":
    for number in sys.argv[1:] or exercises():
        found = tally(exercises()[number])
        print(f"{number}:", ", ".join(f"{len(group)} {what}" for what, group in found.items()))
        for what in ("survives", "right"):
            for mutant in found[what]:
                print(f"  {what}? {mutant.change}: {mutant.line}")
