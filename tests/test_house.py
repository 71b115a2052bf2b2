"""The library stays small enough to hold in mind: short files, one class to a name, and few files behind each idea."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import grimp
import pytest

from tests import budgets, parts

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "course_lib"
BEYOND = ("checks", "lessons", "grading", "classroom", "lab", "authoring")  # what no learner must read


LEARNED = (
    *("runtime", "launcher", "drawing", "core", "messages", "one_device", "data_parallel", "padding", "model_parallel"),
    *("pipeline", "sharding", "clusters", "frameworks", "transformer", "train"),
)


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
        ("pipeline.named_schedules", 3),
        ("data_parallel.ddp", 11),
        ("sharding.fsdp", 13),
        ("train.checkpoint.save_and_load", 20),
    ],
)
def test_an_idea_can_be_read_without_the_rest(module, most):
    behind = files_behind(f"course_lib.{module}")
    assert len(behind) <= most, sorted(behind)


LOOKS = ("matplotlib", "IPython", "ipywidgets", "anywidget")
IMPORT_ALL = f"""
import importlib, pkgutil, sys
import course_lib
for name in {LEARNED!r}:
    package = importlib.import_module("course_lib." + name)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith((".__main__", ".live.magic")):  # IPython imports the magic
            importlib.import_module(module.name)
print([name for name in {LOOKS!r} if name in sys.modules])
"""


def test_nothing_from_the_runtime_to_training_needs_a_notebook_or_a_picture_until_it_makes_one():
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_a_lesson_imports_from_four_packages():
    packages = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        sources = [
            "".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"
        ]
        modules = re.findall(r"^ *(?:from|import) (course_lib[.\w]*)", "\n".join(sources), flags=re.M)
        packages[path.stem] = {".".join(module.split(".")[:2]) for module in modules}
    assert len(packages) == 12
    assert {name: found for name, found in packages.items() if not 1 < len(found) <= 4} == {}


def test_no_package_exports_a_name_that_is_also_a_module_of_its_own():
    """Python would give the module to whoever asks after it was imported."""
    both = {
        path.parent.name: names & {each.stem for each in path.parent.iterdir()}
        for path in LIBRARY.rglob("__init__.py")
        if (names := exported(path))
    }
    assert len(both) > 10
    assert {name: found for name, found in both.items() if found} == {}


def exported(path: Path) -> set[str]:
    """Return the names that a package's __init__ lists behind TYPE_CHECKING."""
    blocks = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]
    imports = [each for block in blocks for each in block.body if isinstance(each, ast.ImportFrom)]
    return {alias.name for each in imports for alias in each.names}


def test_the_library_has_few_loose_files():
    assert len(list(LIBRARY.glob("*.py"))) <= 4


def test_no_package_is_over_its_budget_of_lines():
    assert budgets.complaints() == []


def test_a_package_over_its_budget_is_told_by_how_much(tmp_path):
    (tmp_path / "course_lib" / "core").mkdir(parents=True)
    (tmp_path / "course_lib" / "core" / "__init__.py").write_text("x = 1\ny = 2\n")
    (tmp_path / "pyproject.toml").write_text("[tool.course.budgets]\ncore = 1\ngone = 5\n")
    over, gone = budgets.complaints(tmp_path)
    assert over.startswith("core has 2 lines, 1 more than its budget of 1")
    assert gone == "pyproject.toml has a budget for gone, which is not a package"


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("import course_lib.strategies", "data_parallel (DDP, Accumulation)"),
        ("from course_lib.planning.schedules import gpipe", "pipeline (schedules)"),
        ("from course_lib import pictures", "draw_timeline, draw_curves"),
    ],
)
def test_an_import_of_version_1_says_where_the_name_is_now(line, place):
    with pytest.raises(ImportError, match=re.escape(place)):
        exec(line, {})


def test_every_path_of_a_part_of_the_suite_is_there():
    paths = [path for part in parts.PARTS.values() for path in (*part.paths, *part.without, *part.depends)]
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
