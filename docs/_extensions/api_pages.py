"""The reference of `course_lib`: a table of its packages, and a page for each with its modules and public names."""

from __future__ import annotations

import ast
from pathlib import Path

from repository import ROOT

PACKAGE = ROOT / "course_lib"
# In the order of the lessons, which is the order of imports in pyproject.toml.
ROOMS = (
    *("runtime", "launcher", "core", "messages", "one_device", "data_parallel", "padding", "model_parallel"),
    *("pipeline", "sharding", "clusters", "frameworks", "transformer", "train"),
    *("checks", "lessons", "lab", "grading", "authoring", "classroom", "command"),
)
LANDING = """# API reference

`course_lib`, in the order of the lessons. A package imports only from those above it.

{tree}

## What you import most

```python
from course_lib import launch
```

{names}

```{{toctree}}
:hidden:

{rooms}
```
"""
ROOM = """# course_lib.{room}

```{{eval-rst}}
.. automodule:: course_lib.{room}
   :members:
{imported}```
{modules}"""
IMPORTED = "   :imported-members:\n"  # a package's public names come from its modules


def api_pages() -> dict[str, str]:
    """All pages of the reference, by the name of their file."""
    found = {path.stem if path.suffix else path.name for path in PACKAGE.iterdir() if _is_room(path)}
    assert found == set(ROOMS), (
        f"docs/_extensions/api_pages.py lists other rooms than course_lib has: {found ^ set(ROOMS)}"
    )
    return {"api/index.md": _landing()} | {f"api/{room}.md": _room(room) for room in ROOMS}


def _is_room(path: Path) -> bool:
    if path.is_dir():
        return (path / "__init__.py").is_file() and not path.name.startswith("_")
    return path.suffix == ".py" and path.stem not in {"__init__", "__main__", "version"}


def _landing() -> str:
    rows = [f"| [`{room}`]({room}.md) | {_first_line(_file(room))} |" for room in ROOMS]
    tree = ["| package | |", "|---|---|", *rows]
    names = [f"- {_link(name, module)}" for name, module in _imported(PACKAGE / "__init__.py").items()]
    return LANDING.format(tree="\n".join(tree), names="\n".join(names), rooms="\n".join(ROOMS))


def _link(name: str, module: str) -> str:
    return f"{{py:obj}}`course_lib.{name} <{module}.{name}>`"


def _room(room: str) -> str:
    rows = [f"| `{path.stem}` | {_first_line(_file_of(path))} |" for path in _parts(PACKAGE / room)]
    modules = "\n".join(["", "## Its modules", "", "| module | |", "|---|---|", *rows, ""]) if rows else ""
    imported = IMPORTED if "exports(__name__)" in _file(room).read_text() else ""
    borrowed = [name for name, module in _imported(_file(room)).items() if not module.startswith(f"course_lib.{room}")]
    imported += f"   :exclude-members: {', '.join(borrowed)}\n" if imported and borrowed else ""  # they have a page
    return ROOM.format(room=room, imported=imported, modules=modules)


def _file(room: str) -> Path:
    return _file_of(PACKAGE / room) if (PACKAGE / room).is_dir() else PACKAGE / f"{room}.py"


def _file_of(path: Path) -> Path:
    return path / "__init__.py" if path.is_dir() else path


def _parts(folder: Path) -> list[Path]:
    found = [path for path in sorted(folder.glob("[a-z]*")) if path.suffix == ".py" or (path / "__init__.py").is_file()]
    return [path for path in found if _docstring(_file_of(path))]


def _docstring(file: Path) -> str:
    return ast.get_docstring(ast.parse(file.read_text())) or ""


def _first_line(file: Path) -> str:
    return " ".join(_docstring(file).partition("\n\n")[0].split()).replace("|", "\\|")


def _imported(file: Path) -> dict[str, str]:
    """The public names of a package that are functions or classes of its rooms, with the room of each."""
    body = ast.parse(file.read_text()).body
    lines = [line for part in body for line in (part.body if isinstance(part, ast.If) else [part])]
    imports = [line for line in lines if isinstance(line, ast.ImportFrom) and line.module not in {None, "course_lib"}]
    return {
        name.name: str(line.module)
        for line in imports
        for name in line.names
        if not name.name.startswith("_") and name.name != "warm_up"
    }
