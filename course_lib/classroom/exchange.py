"""Hand out the exercises between two classes: `course release`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from course_lib.checks.notebooks import BEGIN, END
from course_lib.course_files import (
    NOT_YET,
    BadNotebook,
    Notebook,
    course_folder,
    is_answer,
    nbgrader_metadata,
    read,
    source,
)

SHORTEST = 40  # characters of an answer that give it away: `return total` may well stand in a question


class BadExchange(ValueError):
    """A folder from which nothing can be gathered, or into which nothing can be laid; the sentence says why."""


def exercise_notebooks(lessons: Sequence[str] = ()) -> dict[str, Path]:
    """The course's notebooks of exercises, by lesson: of these, or of all."""
    found = {path.stem[:2]: path for path in sorted((course_folder() / "exercises").glob("*.ipynb"))}
    if unknown := [lesson for lesson in lessons if lesson not in found]:
        raise BadExchange(f"--lessons {' '.join(unknown)}: there are exercises for {', '.join(found)}")
    return {lesson: path for lesson, path in found.items() if not lessons or lesson in lessons}


def release(folder: Path, lessons: Sequence[str] = ()) -> list[str]:
    """Lay the exercises into `folder`, one folder for each lesson, to hand out. Returns the names of those.

    Raises `BadExchange`, before anything is written, if that would give an answer away or overwrite somebody's.
    """
    if folder.exists() and not folder.is_dir():
        raise BadExchange(f"{folder} is a file: give a folder")
    paths = exercise_notebooks(lessons).values()
    for path in paths:
        if found := answers_in(read(path), _solution(path)):
            raise BadExchange(f"{path} gives an answer away ({', '.join(found)}): nothing was handed out")
        place = folder / path.stem / path.name
        if place.is_symlink() or place.parent.is_symlink():
            raise BadExchange(f"{place} is a link, or lies behind one: give another folder")
        if place.exists() and _is_begun_file(place, read(path)):
            raise BadExchange(f"{place} has answers in it that somebody wrote: give another folder")
    for path in paths:
        write(folder / path.stem / path.name, path.read_bytes())
    return [path.stem for path in paths]


def answers_in(exercise: Notebook, solution: Notebook | None = None) -> list[str]:
    """What gives an answer away: an answer that is written, or lines of the solution in any other place."""
    blocks = [_squeezed(block) for block in _answers(solution)] if solution else []
    blocks = [block for block in blocks if len(block) >= SHORTEST]
    found: list[str] = []
    for place, cell in enumerate(exercise["cells"], start=1):
        told = _squeezed(f"{source(cell)}\n{_printed(cell)}")
        if is_answer(cell) and NOT_YET not in source(cell):
            found.append(f"cell {place} is answered")
        elif _squeezed(BEGIN) in told or any(block in told for block in blocks):
            found.append(f"cell {place} has lines of the solution")
    return found


def is_begun(notebook: Notebook, exercise: Notebook) -> bool:
    """Whether somebody has written an answer: one of those cells is not as it was handed out."""
    handed_out = {_name(cell): _squeezed(source(cell)) for cell in exercise["cells"] if is_answer(cell)}
    now = {_name(cell): _squeezed(source(cell)) for cell in notebook["cells"] if _name(cell) in handed_out}
    return any(handed_out[name] != text for name, text in now.items()) or not now


def write(path: Path, content: bytes) -> None:
    """Written aside and renamed: a file is whole, or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp")
    aside.unlink(missing_ok=True)
    aside.write_bytes(content)
    aside.replace(path)


def _is_begun_file(path: Path, exercise: Notebook) -> bool:
    try:
        return is_begun(read(path), exercise)
    except BadNotebook:
        return True


def _solution(exercise: Path) -> Notebook | None:
    path = course_folder() / "solutions" / exercise.name
    return read(path) if path.exists() else None


def _answers(solution: Notebook) -> Iterator[str]:
    """What stands between the marks of a solution."""
    for cell in filter(is_answer, solution["cells"]):
        for piece in source(cell).split(BEGIN)[1:]:
            yield piece.split(END)[0]


def _printed(cell: dict) -> str:
    """What a run of the cell has left as text."""
    outputs = cell.get("outputs") or []
    texts = [output.get("text", "") for output in outputs if isinstance(output, dict)]
    return "\n".join("".join(text) if isinstance(text, list) else str(text) for text in texts)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _name(cell: dict) -> str:
    return str(nbgrader_metadata(cell).get("grade_id", ""))
