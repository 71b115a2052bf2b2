"""The reference of `course_lib`: a table of its packages, and a page for each with its modules and public names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from repository import ROOT

LIBRARY = ROOT / "course_lib"
# In the order of the lessons, which is the order of imports in pyproject.toml.
PACKAGES = (
    *("runtime", "launcher", "drawing", "core", "messages", "one_device", "data_parallel", "padding", "model_parallel"),
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

{packages}
```
"""
PAGE = """# course_lib.{package}{lessons}

```{{eval-rst}}
.. automodule:: course_lib.{package}
   :members:
{imported}```
{modules}"""
IMPORTED = "   :imported-members:\n"  # a package's public names come from its modules


def api_pages() -> dict[str, str]:
    """All pages of the reference, by the name of their file."""
    found = {path.stem if path.suffix else path.name for path in LIBRARY.iterdir() if _is_package(path)}
    assert found == set(PACKAGES), (
        f"docs/_extensions/api_pages.py lists other packages than course_lib has: {found ^ set(PACKAGES)}"
    )
    return {"api/index.md": _landing()} | {f"api/{package}.md": _page(package) for package in PACKAGES}


def _is_package(path: Path) -> bool:
    if path.is_dir():
        return (path / "__init__.py").is_file() and not path.name.startswith("_")
    return path.suffix == ".py" and path.stem not in {"__init__", "__main__", "version"}


def _landing() -> str:
    rows = [f"| [`{package}`]({package}.md) | {_first_line(_file(package))} |" for package in PACKAGES]
    tree = ["| package | |", "|---|---|", *rows]
    names = [f"- {_link(name, module)}" for name, module in _imported(LIBRARY / "__init__.py").items()]
    return LANDING.format(tree="\n".join(tree), names="\n".join(names), packages="\n".join(PACKAGES))


def _link(name: str, module: str) -> str:
    return f"{{py:obj}}`course_lib.{name} <{module}.{name}>`"


def _page(package: str) -> str:
    rows = [f"| `{path.stem}` | {_first_line(_file_of(path))} |" for path in _parts(LIBRARY / package)]
    modules = "\n".join(["", "## Its modules", "", "| module | |", "|---|---|", *rows, ""]) if rows else ""
    imported = IMPORTED if "exports(__name__)" in _file(package).read_text() else ""
    home = f"course_lib.{package}"
    borrowed = [name for name, module in _imported(_file(package)).items() if not module.startswith(home)]
    imported += f"   :exclude-members: {', '.join(borrowed)}\n" if imported and borrowed else ""  # they have a page
    named = re.search(r"\((lessons? [^)]*)\)", _first_line(_file(package)))
    lessons = f", {named[1]}" if named else ""
    return PAGE.format(package=package, lessons=lessons, imported=imported, modules=modules)


def _file(package: str) -> Path:
    return _file_of(LIBRARY / package) if (LIBRARY / package).is_dir() else LIBRARY / f"{package}.py"


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
    """The public names of a package that are functions or classes of its modules, with the module of each."""
    body = ast.parse(file.read_text()).body
    lines = [line for part in body for line in (part.body if isinstance(part, ast.If) else [part])]
    imports = [line for line in lines if isinstance(line, ast.ImportFrom) and line.module not in {None, "course_lib"}]
    return {
        name.name: str(line.module)
        for line in imports
        for name in line.names
        if not name.name.startswith("_") and name.name != "warm_up"
    }
