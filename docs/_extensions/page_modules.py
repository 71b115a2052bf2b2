"""The modules that a page's Python needs: found by following imports, and packed into a zip file."""

from __future__ import annotations

import ast
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
WIDGETS = ROOT / "docs" / "_widgets"
STAND_INS = WIDGETS / "stand_ins"
WRITTEN = (1980, 1, 1, 0, 0, 0)  # the same modules are the same zip file, whenever it is made


class CannotRunInPage(Exception):
    """A module imports what a page does not have."""


def write_modules(file: Path) -> None:
    """Pack what `docs/_widgets/in_page.py` imports, and the JSON files beside those modules that are named there.

    A package that is only on the way to a module is left out: Python does without, and it would import everything.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, path in sorted(needed_modules().items()):
            packed.writestr(zipfile.ZipInfo(name, WRITTEN), path.read_bytes(), zipfile.ZIP_DEFLATED)


def needed_modules(start: Path = WIDGETS / "in_page.py") -> dict[str, Path]:
    """Path in the page -> file, of a module and of all that is imported as soon as it is."""
    found, looked_at = {start.name: start}, [start]
    while looked_at:
        for name, file in _imported_by(looked_at.pop()):
            if name not in found:
                found[name] = file
                looked_at += [file] if file.suffix == ".py" else []
    return found


def _imported_by(file: Path) -> Iterator[tuple[str, Path]]:
    source = file.read_text()
    for module in _names(ast.parse(source).body):
        if module.partition(".")[0] in sys.stdlib_module_names:
            continue
        path = _file_of(module)
        if path is None:
            raise CannotRunInPage(
                f"{file} imports {module}, which a page does not have: import it inside the function that needs it, "
                "or only where types are checked"
            )
        yield str(path.relative_to(STAND_INS if STAND_INS in path.parents else ROOT)), path
    for data in file.parent.glob("*.json"):
        if f'"{data.name}"' in source:
            yield str(data.relative_to(ROOT)), data


def _names(statements: list[ast.stmt]) -> Iterator[str]:
    """The modules that these statements import: not those inside functions, or behind `if TYPE_CHECKING`."""
    for statement in statements:
        if isinstance(statement, ast.Import):
            yield from (each.name for each in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            inside = [f"{statement.module}.{each.name}" for each in statement.names]
            yield from {name if _file_of(name) else statement.module for name in inside}
        elif isinstance(statement, ast.Try):
            yield from _names(statement.body)


def _file_of(module: str) -> Path | None:
    """Where a module of the course lies, or one that stands in for another in the page."""
    stem = module.replace(".", "/")
    places = (ROOT / f"{stem}.py", ROOT / stem / "__init__.py", STAND_INS / f"{stem}.py")
    return next((place for place in places if place.is_file()), None)
