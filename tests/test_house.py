"""The library stays small enough to hold in mind: short files, one class to a name, and few files behind each idea."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "course_lib"
BEYOND = ("checks", "lessons", "grading", "classroom", "lab", "authoring")  # what no learner must read


def core_files() -> list[Path]:
    return [path for path in sorted(LIBRARY.rglob("*.py")) if path.relative_to(LIBRARY).parts[0] not in BEYOND]


def test_no_file_is_longer_than_350_lines():
    lengths = {path: len(path.read_text().splitlines()) for path in sorted(LIBRARY.rglob("*.py"))}
    assert {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > 350} == {}


def test_no_two_public_classes_have_one_name():
    places = defaultdict(list)
    for path in core_files():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 100
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("course_lib", exclude_type_checking_imports=True, cache_dir=None)


def files_behind(module: str) -> set[str]:
    """Return the modules that one needs when it is imported alone, itself included; packages' __init__ don't count."""
    found, todo = {module}, [module]
    while todo:
        for name in graph().find_modules_directly_imported_by(todo.pop()):
            if name not in found and not (ROOT / name.replace(".", "/")).is_dir():
                found.add(name)
                todo.append(name)
    return found


@pytest.mark.parametrize(
    ("module", "most"),
    [
        ("planning.schedules", 3),
        ("strategies.ddp", 11),
        ("strategies.fsdp", 13),
        ("training.checkpoint.storage", 20),
    ],
)
def test_an_idea_can_be_read_without_the_rest(module, most):
    behind = files_behind(f"course_lib.{module}")
    assert len(behind) <= most, sorted(behind)
