"""What students have handed in: a folder for each, with their notebooks in it."""

from __future__ import annotations

import os
import stat
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from course_lib.checks import exercises
from course_lib.checks.notebooks import BadNotebook

MOST_FILES = 10_000  # of a student that are looked at
LARGEST = 20 << 20  # bytes of a notebook
NO_FILE = "it is not a notebook: not a file that can be read, or a link to another one"


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
        """What the file says. Raises `BadNotebook` if it is none, or says more than a notebook may."""
        try:
            # Neither a link to somebody else's is followed, nor is a pipe waited for.
            descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        except OSError:
            raise BadNotebook(NO_FILE) from None
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise BadNotebook(NO_FILE)
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise BadNotebook(f"it is larger than {LARGEST >> 20} MB; clear its outputs")
        return content


def find_submissions(folder: Path) -> list[SubmittedNotebook]:
    """One notebook for each student and lesson: the first folder below `folder` is the student's.

    Of several, it is the one that lies highest and has the shortest name: not the copy of an earlier day.
    """
    if not folder.is_dir():
        raise BadSubmissions(f"{folder} is not a folder: give the one that has a folder for each student")
    lessons = {exercise.lesson for exercise in exercises().values()}
    found: dict[tuple[str, str], list[Path]] = {}
    for student in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        notebooks = [path for path in _files_below(student) if path.suffix == ".ipynb" and path.stem[:2] in lessons]
        for path in sorted(notebooks, key=lambda path: (len(path.parts), len(path.name), path)):
            found.setdefault((_as_text(student.name), path.stem[:2]), []).append(path)
    if not found:
        raise BadSubmissions(
            f"{folder} has no exercises in it: it should have a folder for each student, and in it their notebooks, "
            "under the names they had in exercises/"
        )
    return [
        SubmittedNotebook(student, first, tuple(others)) for (student, _), (first, *others) in sorted(found.items())
    ]


def _files_below(student: Path) -> list[Path]:
    """All in a student's folder, what lies highest first; of very many files, the deepest are not looked at."""
    files: list[Path] = []
    folders = deque([student])
    while folders:
        folder = folders.popleft()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if len(files) == MOST_FILES:
                        say = (
                            f"course: {_as_text(student.name)}: more than {MOST_FILES} files; the deepest are left out"
                        )
                        print(say, file=sys.stderr)
                        return files
                    files.append(Path(entry.path))
                    if entry.is_dir(follow_symlinks=False) and entry.name != ".ipynb_checkpoints":
                        folders.append(files[-1])
        except OSError:  # no right to read it, or gone
            continue
    return files


def _as_text(name: str) -> str:
    """The name of a file as it can be written into a page: it may have been made of any bytes."""
    return os.fsencode(name).decode(errors="replace")
