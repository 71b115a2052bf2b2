"""Hand out exercises and collect answers between classes: `course release` and `course collect`.

Students may own the folders that we collect from, and change them while we read. So we follow no links anywhere on the
path to a file, and refuse files that do not belong to the owner of their folder.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.checks.notebooks import BEGIN, END
from course_lib.grading.submissions import LARGEST, as_text, file_name, files_below
from course_lib.runtime.course_files import (
    NOT_YET,
    BadNotebook,
    Notebook,
    course_folder,
    is_answer,
    nbgrader_metadata,
    parse,
    read,
    source,
    write_whole,
)

SHORTEST = 40  # characters; a shorter answer, like `return total`, may also occur in a question


class BadExchange(ValueError):
    """A folder cannot be collected from or released to; the message says why."""


def exercise_notebooks(lessons: Sequence[str] = ()) -> dict[str, Path]:
    """Return the exercise notebooks by lesson, for these lessons or for all."""
    found = {path.stem[:2]: path for path in sorted((course_folder() / "exercises").glob("*.ipynb"))}
    if unknown := [lesson for lesson in lessons if lesson not in found]:
        raise BadExchange(f"--lessons {' '.join(unknown)}: there are exercises for {', '.join(found)}")
    return {lesson: path for lesson, path in found.items() if not lessons or lesson in lessons}


def release(folder: Path, lessons: Sequence[str] = ()) -> list[str]:
    """Copy the exercises to `folder`, with one folder per lesson, to hand out. Returns the names of those folders.

    Raises `BadExchange`, before writing anything, if that would give an answer away or overwrite someone's answers.
    """
    if folder.exists() and not folder.is_dir():
        raise BadExchange(f"{folder} is a file: give a folder")
    paths = exercise_notebooks(lessons).values()
    for path in paths:
        if found := answers_in(read(path), _solution(path)):
            raise BadExchange(f"{path} gives an answer away ({', '.join(found)}): nothing was handed out")
        place = folder / path.stem / path.name
        if place.is_symlink() or place.parent.is_symlink():
            raise BadExchange(f"{place} is a link, or is behind one: give another folder")
        if place.exists() and _is_begun_file(place, read(path)):
            raise BadExchange(f"{place} already has answers that somebody wrote: give another folder")
    for path in paths:
        write_whole(folder / path.stem / path.name, path.read_bytes())
    return [path.stem for path in paths]


def answers_in(exercise: Notebook, solution: Notebook | None = None) -> list[str]:
    """Return the cells that give an answer away: answered ones, and those that contain lines of the solution."""
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
    """Whether an answer cell differs from what was handed out."""
    handed_out = {_name(cell): _squeezed(source(cell)) for cell in exercise["cells"] if is_answer(cell)}
    now = {_name(cell): _squeezed(source(cell)) for cell in notebook["cells"] if _name(cell) in handed_out}
    return any(handed_out[name] != text for name, text in now.items()) or not now


def _is_begun_file(path: Path, exercise: Notebook) -> bool:
    try:
        return is_begun(read(path), exercise)
    except BadNotebook:
        return True


def _solution(exercise: Path) -> Notebook | None:
    path = course_folder() / "solutions" / exercise.name
    return read(path) if path.exists() else None


def _answers(solution: Notebook) -> Iterator[str]:
    """Yield the code between the solution markers."""
    for cell in filter(is_answer, solution["cells"]):
        for piece in source(cell).split(BEGIN)[1:]:
            yield piece.split(END)[0]


def _printed(cell: dict) -> str:
    """Return the text outputs of a cell."""
    outputs = cell.get("outputs") or []
    texts = [output.get("text", "") for output in outputs if isinstance(output, dict)]
    return "\n".join("".join(text) if isinstance(text, list) else str(text) for text in texts)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _name(cell: dict) -> str:
    return str(nbgrader_metadata(cell).get("grade_id", ""))


# Canvas puts all uploads into one folder: doejane_LATE_1234_5678_02_ddp-1.ipynb
UPLOAD = re.compile(r"(?P<student>[^_]+)_(?:.*_)?(?P<notebook>\d\d_[a-z_]+)(?:-\d+)?\.ipynb", re.ASCII)


class Refused(ValueError):
    """A file is not collected; the message says why."""


@dataclass(frozen=True)
class Source:
    """A student's notebook; `path` is relative to the folder that we collect from."""

    student: str
    lesson: str
    path: Path


@dataclass
class Collected:
    """The result of collecting."""

    taken: dict[str, list[str]] = field(default_factory=dict)  # student -> names of notebooks
    same: int = 0  # notebooks that we already had
    newer_here: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    missing: dict[str, list[str]] = field(default_factory=dict)  # student -> lessons not handed in; may be all
    lessons: int = 0  # how many could have been handed in

    def __str__(self) -> str:
        count = sum(map(len, self.taken.values()))
        lines = [f"Collected: {_counted(count, 'notebook')} from {_counted(len(self.taken), 'student')}"]
        lines[0] += f"; {self.same} more were already here" if self.same else ""
        if self.newer_here:
            lines.append(f"Not replaced, because your copy is newer: {', '.join(self.newer_here)}")
        lines += [f"Refused: {each}" for each in self.refused]
        nothing = [name for name, lessons in self.missing.items() if len(lessons) == self.lessons]
        if nothing:
            lines.append(f"Handed in nothing: {', '.join(nothing)}")
        lines += [f"{name}: missing {', '.join(some)}" for name, some in self.missing.items() if name not in nothing]
        return "\n".join(lines)


def collect(given: Path, into: Path, lessons: Sequence[str] = (), expected: Iterable[str] = ()) -> Collected:
    """Collect notebooks from a folder that has a folder per student, or files named as Canvas names uploads.

    Skips exercises that have not been started, and keeps our copy if it is newer. `expected` lists student names.
    Without `lessons`, a lesson that no student has handed in does not count as missing: it may not be released yet.
    """
    if not given.is_dir():
        raise BadExchange(f"{given} is not a folder: give the one that has the students' folders, or their uploads")
    if _one_lies_in_the_other(given, into):
        raise BadExchange(f"{into}: give a folder that is neither inside {given} nor a parent of it")
    notebooks = exercise_notebooks(lessons)
    done = Collected()
    here: dict[str, set[str]] = {name: set() for name in expected}
    for student, sources in _students(given, notebooks, done).items():
        theirs = here.setdefault(student, set())
        for each in sources:
            if _take(
                each, given, into / file_name(student) / notebooks[each.lesson].name, notebooks[each.lesson], done
            ):
                theirs.add(each.lesson)
    handed_in = set().union(*here.values())
    due = [lesson for lesson in notebooks if lessons or lesson in handed_in] or [*notebooks]
    done.lessons = len(due)
    missing = {name: [lesson for lesson in due if lesson not in theirs] for name, theirs in sorted(here.items())}
    done.missing = {name: some for name, some in missing.items() if some}
    return done


def _students(given: Path, notebooks: dict[str, Path], done: Collected) -> dict[str, list[Source]]:
    """Return each student's notebooks; if a lesson has several, the least nested one with the shortest name."""
    found: dict[str, dict[str, Source]] = {}
    for path in sorted(given.iterdir()):
        name, upload = as_text(path.name), UPLOAD.fullmatch(path.name)
        if path.is_symlink():
            done.refused.append(f"{name}: it is a link to another place")
        elif path.is_dir() and not path.name.startswith("."):
            theirs = found.setdefault(name, {})
            files = [file for file in files_below(path) if file.suffix == ".ipynb" and file.stem[:2] in notebooks]
            for file in sorted(files, key=lambda file: (len(file.parts), len(file.name), file)):
                lesson = file.stem[:2]
                theirs.setdefault(lesson, Source(name, lesson, file.relative_to(given)))
        elif upload and upload["notebook"][:2] in notebooks:
            student, lesson = upload["student"], upload["notebook"][:2]
            found.setdefault(student, {}).setdefault(lesson, Source(student, lesson, path.relative_to(given)))
    return {student: list(theirs.values()) for student, theirs in found.items()}


def _take(each: Source, given: Path, place: Path, exercise: Path, done: Collected) -> bool:
    """Copy a notebook unless ours is newer. Returns whether we now have one for this student and lesson."""
    try:
        content, changed = read_below(given, each.path)
    except Refused as error:
        done.refused.append(f"{as_text(str(each.path))}: {error}")
        return place.is_file()
    if not _is_begun(content, exercise):
        return place.is_file()
    if place.is_file() and place.read_bytes() == content:
        done.same += 1
    elif place.is_file() and place.stat().st_mtime > changed:
        done.newer_here.append(f"{each.student}/{place.name}")
    else:
        place.parent.parent.mkdir(0o700, parents=True, exist_ok=True)  # students must not see each other's work
        write_whole(place, content)
        os.utime(place, (changed, changed))
        done.taken.setdefault(each.student, []).append(place.stem)
    return True


def read_below(folder: Path, path: Path) -> tuple[bytes, float]:
    """Return a file's content and modification time, without following links. Raises `Refused`."""
    *folders, name = path.parts
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    at = os.open(folder, os.O_RDONLY)
    try:
        owner = None
        for part in folders:
            inner = os.open(part, flags | getattr(os, "O_DIRECTORY", 0), dir_fd=at)
            os.close(at)
            at = inner
            owner = os.fstat(at).st_uid if owner is None else owner
        file = os.open(name, flags, dir_fd=at)
    except OSError as error:
        raise Refused(f"it cannot be read, or is a link ({error.strerror})") from None
    finally:
        os.close(at)
    try:
        return _checked(file, owner)
    finally:
        os.close(file)


def _checked(file: int, owner: int | None) -> tuple[bytes, float]:
    """Return an open file's content and modification time, if it is a regular file with the right owner."""
    info = os.fstat(file)
    if not stat.S_ISREG(info.st_mode):
        raise Refused("it is not a file")
    if owner is not None and info.st_uid != owner:
        raise Refused("its owner is not the owner of the folder it is in")
    with open(file, "rb", closefd=False) as opened:
        content = opened.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise Refused(f"it is larger than {LARGEST >> 20} MB; its outputs should be cleared")
    return content, min(info.st_mtime, time.time())  # a future date would block all later versions


def _is_begun(content: bytes, exercise: Path) -> bool:
    try:
        return is_begun(parse(content), read(exercise))
    except BadNotebook:
        return True  # collect it; grading reports what is wrong


def _one_lies_in_the_other(one: Path, other: Path) -> bool:
    one, other = one.resolve(), other.resolve()
    return one.is_relative_to(other) or other.is_relative_to(one)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
