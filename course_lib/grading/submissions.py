"""What students have handed in: a folder for each, with their notebooks in it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.checks import exercises
from course_lib.checks.notebooks import BadNotebook, read

LARGEST = 20 << 20  # bytes of a notebook


class BadSubmissions(ValueError):
    """There is nothing to grade; the sentence says why."""


@dataclass(frozen=True)
class SubmittedNotebook:
    """A notebook that a student has handed in, and others for the same lesson, which earn nothing."""

    student: str
    path: Path
    others: tuple[Path, ...] = ()

    @property
    def notebook(self) -> str:
        return _as_text(self.path.stem)

    @property
    def lesson(self) -> str:
        return self.notebook[:2]

    @property
    def other_names(self) -> str:
        return _as_text(", ".join(f"{path.parent.name}/{path.name}" for path in self.others[:10]))

    def content(self) -> bytes:
        """What the file says, and no more of it than a notebook may say; nothing if `is_a_file` is not so."""
        if not self.is_a_file:
            return b""
        with self.path.open("rb") as file:
            return file.read(LARGEST + 1)

    @property
    def is_a_file(self) -> bool:
        """Neither a link to somebody else's, nor a folder, nor a pipe that would be read for ever."""
        return not self.path.is_symlink() and self.path.is_file() and os.access(self.path, os.R_OK)

    def read(self) -> dict[str, Any]:
        """The notebook. Raises `BadNotebook` if it is none."""
        if not self.is_a_file:
            raise BadNotebook("it is not a notebook: not a file that can be read, or a link to another one")
        if self.path.stat().st_size > LARGEST:
            raise BadNotebook(f"it is larger than {LARGEST >> 20} MB; clear its outputs")
        return read(self.path)


def find_submissions(folder: Path) -> list[SubmittedNotebook]:
    """One notebook for each student and lesson: the first folder below `folder` is the student's.

    Of several, it is the one that lies highest and has the shortest name: not the copy of an earlier day.
    """
    if not folder.is_dir():
        raise BadSubmissions(f"{folder} is not a folder: give the one that has a folder for each student")
    lessons = {exercise.lesson for exercise in exercises().values()}
    found: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(folder.glob("*/**/*.ipynb"), key=lambda path: (len(path.parts), len(path.name), path)):
        if path.stem[:2] in lessons and ".ipynb_checkpoints" not in path.parts:
            found.setdefault((_as_text(path.relative_to(folder).parts[0]), path.stem[:2]), []).append(path)
    if not found:
        raise BadSubmissions(
            f"{folder} has no exercises in it: it should have a folder for each student, and in it their notebooks, "
            "under the names they had in exercises/"
        )
    return [
        SubmittedNotebook(student, first, tuple(others)) for (student, _), (first, *others) in sorted(found.items())
    ]


def _as_text(name: str) -> str:
    """The name of a file as it can be written into a page: it may have been made of any bytes."""
    return os.fsencode(name).decode(errors="replace")
