"""Does every package keep to its budget of lines, in pyproject.toml? `make lint` asks.

python -m tests.budgets
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent


def lines_of(package: Path) -> int:
    """Return the lines of a package's Python files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in package.rglob("*.py"))


def complaints(root: Path = ROOT) -> list[str]:
    """Return a sentence for each package that is over its budget, has none, or is no longer there."""
    budgets = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["course"]["budgets"]
    lines = {file.parent.name: lines_of(file.parent) for file in sorted((root / "course_lib").glob("*/__init__.py"))}
    over = [
        f"{name} has {count} lines, {count - budgets[name]} more than its budget of {budgets[name]}: shorten it, or "
        "say in the commit why it is worth more"
        for name, count in lines.items()
        if count > budgets.get(name, count)
    ]
    unplanned = [f"{name} has no budget in pyproject.toml: give it one" for name in lines if name not in budgets]
    gone = [f"pyproject.toml has a budget for {name}, which is not a package" for name in budgets if name not in lines]
    return over + unplanned + gone


if __name__ == "__main__":
    print("\n".join(complaints()) or "every package is within its budget")
    sys.exit(bool(complaints()))
