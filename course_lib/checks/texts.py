"""The texts of a lesson, read from the TOML files in `lessons/lesson_NN`. Errors name the file and the key."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

CONTENT = Path(__file__).parents[1] / "lessons"
LEVELS = ("warm-up", "exercise", "build")
# The keys of exercises.toml, and what each one holds.
EXERCISE = {
    **{"number": str, "title": str, "answer": str, "level": str, "minutes": int, "parts": dict},
    **{"read": str, "read_in": str, "read_for": dict, "hints": list, "errors": dict},
}
OPTIONAL = ("read_in", "read_for", "errors")


def texts(number: str) -> dict[str, Any]:
    """Return the texts of an exercise, as keyword arguments of `Exercise`."""
    return _exercise_texts(CONTENT / f"lesson_{number[:2]}" / "exercises.toml")[number]


@cache
def _exercise_texts(path: Path) -> dict[str, dict[str, Any]]:
    return {each["number"]: each for each in read_exercises(path)}


def read_exercises(path: Path) -> list[dict[str, Any]]:
    """Return the exercises of an exercises.toml in order. Raises `ValueError`, which names the file and the key."""
    return [_exercise(each, where) for each, where in read_tables(path, "exercise")]


def read_tables(path: Path, name: str) -> list[tuple[Any, str]]:
    """Return the `[[name]]` tables of a file, the only ones it may have, each with its location for error messages."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    check_table(content, {name: list}, [name], str(path))
    return [(table, f"{path}: {name} {place}") for place, table in enumerate(content[name], 1)]


def _exercise(table: Any, where: str) -> dict[str, Any]:
    check_table(table, EXERCISE, [key for key in EXERCISE if key not in OPTIONAL], where)
    where = f"{where} ({table['number']})"
    if table["level"] not in LEVELS:
        raise ValueError(f"{where}, level: {table['level']!r} should be one of {', '.join(LEVELS)}")
    _check_values(table["parts"], int, f"{where}, parts")
    _check_values(dict(enumerate(table["hints"], 1)), str, f"{where}, hints")
    _check_values(table.get("errors", {}), str, f"{where}, errors")
    _check_values(table.get("read_for", {}), list, f"{where}, read_for")
    for part, section in table.get("read_for", {}).items():
        if part not in table["parts"] or [type(each) for each in section] != [str, str]:
            raise ValueError(f"{where}, read_for, {part}: map a part of the exercise to its lesson and section")
    return {
        **table,
        "hints": tuple(map(one_line, table["hints"])),
        "errors": {key: one_line(text) for key, text in table.get("errors", {}).items()},
        "read_for": {part: tuple(section) for part, section in table.get("read_for", {}).items()},
    }


def check_table(table: Any, keys: Mapping[str, Any], needed: Sequence[str], where: str) -> None:
    """Raise `ValueError` if a table lacks a key, has an unknown one, or has a value of the wrong type."""
    if not isinstance(table, dict):
        raise ValueError(f"{where}: this should be a table, not {table!r}")
    for key in needed:
        if key not in table:
            raise ValueError(f"{where}, {key}: it is missing")
    for key, value in table.items():
        if key not in keys:
            raise ValueError(f"{where}, {key}: there is no such key; use one of {', '.join(keys)}")
        if not isinstance(value, keys[key]):
            raise ValueError(f"{where}, {key}: {value!r} has the wrong type")


def _check_values(table: Mapping[Any, Any], kind: type, where: str) -> None:
    for key, value in table.items():
        if type(value) is not kind:
            raise ValueError(f"{where}, {key}: {value!r} should be of type {kind.__name__}")


def one_line(text: str) -> str:
    """Return a wrapped text on one line."""
    return " ".join(text.split())
