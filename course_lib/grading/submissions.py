"""Find what students handed in: one folder per student, with their notebooks in it.

File names come from students, so they are untrusted: this module turns them into printable text and safe file names.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import unicodedata
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from course_lib.checks.catalog import exercises
from course_lib.checks.showing import UNPRINTABLE
from course_lib.runtime.course_files import BadNotebook

LONGEST = 100  # bytes; temporary files add a suffix, and file systems allow 255
PLAIN = re.compile(r"[\w(][\w .,'()@+-]*(?<![ .])")
NOT_A_NAME = re.compile(rf"[\t\n]|{UNPRINTABLE.pattern}")  # what a terminal could interpret
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)([. ].*)?", re.IGNORECASE)  # reserved on Windows


def as_text(name: str) -> str:
    r"""Return a file name as printable text; bytes that are not UTF-8 and control characters become `\xff`."""
    text = os.fsencode(name).decode(errors="backslashreplace")
    return NOT_A_NAME.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def file_name(text: str) -> str:
    """Return a safe, unique file name for this text: the text itself if possible.

    A name that had to change ends with `~` and a digest. Unchanged names never contain `~`, so the two cannot clash.
    """
    whole = len(text.encode(errors="replace")) <= LONGEST and unicodedata.is_normalized("NFC", text)
    if whole and PLAIN.fullmatch(text) and not RESERVED.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{re.sub('[^A-Za-z0-9]+', '_', text)[:40]}~{digest}"


MOST_FILES = 10_000  # that we read per student
LARGEST = 20 << 20  # bytes of a notebook
LONGEST_TEXT = 1000  # characters of file names in a message
NOTHING = "Nothing was handed in: the folder has no notebook from exercises/ under its original name."
NO_FILE = "it is not a notebook: it is not a readable file, or it is a link to another one"


class BadSubmissions(ValueError):
    """There is nothing to grade; the message says why."""


@dataclass(frozen=True)
class SubmittedNotebook:
    """A notebook that a student handed in. `others` are more notebooks for the same lesson, which earn nothing."""

    student: str
    path: Path
    folder: Path  # the student's
    others: tuple[Path, ...] = ()
    trouble: str = ""  # why there is no notebook to grade; "" if there is one

    @property
    def notebook(self) -> str:
        return "" if self.trouble else as_text(self.path.stem)

    @property
    def lesson(self) -> str:
        return self.notebook[:2]

    @property
    def other_names(self) -> str:
        return as_text(", ".join(f"{path.parent.name}/{path.name}" for path in self.others[:10]))[:LONGEST_TEXT]

    def content(self) -> bytes:
        """Return the file's bytes. Raises `BadNotebook` if it is not a regular file or is too large."""
        try:
            descriptor = open_inside(self.folder, self.path)
        except (OSError, ValueError):
            raise BadNotebook(NO_FILE) from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise BadNotebook(NO_FILE)
        with open(descriptor, "rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise BadNotebook(f"it is larger than {LARGEST >> 20} MB; clear its outputs")
        return content


def open_inside(folder: Path, path: Path) -> int:
    """Open a file below a student's folder for reading. Raises `OSError` if the folder, or any on the way, is a link.

    They were folders when we scanned them, but may have become links to someone else's files since. So we open them
    one by one, each relative to the last, and never resolve a whole path.
    """
    kind = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # do not block on a pipe
    names = [folder.name, *path.relative_to(folder).parts]
    if os.open not in os.supports_dir_fd:
        return os.open(path, kind)
    here = os.open(folder.parent, os.O_RDONLY)
    for last, name in zip([False] * (len(names) - 1) + [True], names, strict=True):
        try:
            there = os.open(name, kind if last else kind | os.O_DIRECTORY, dir_fd=here)
        finally:
            os.close(here)
        here = there
    return here


def find_submissions(folder: Path, wanted: Callable[[str], bool] | None = None) -> list[SubmittedNotebook]:
    """Return one notebook per student and lesson. Each folder directly inside `folder` belongs to a student.

    `wanted` selects students by name; by default, all of them.
    If there are several notebooks, the least nested one with the shortest name wins, which skips old copies.
    """
    if not folder.is_dir():
        raise BadSubmissions(f"{folder} is not a folder: give the one that has a folder for each student")
    lessons = {exercise.lesson for exercise in exercises().values()}
    found: list[SubmittedNotebook] = []
    for student, path in _students(folder):
        if wanted is None or wanted(student):
            found += _of_student(student, path, lessons)
    if wanted is None and all(each.trouble for each in found):
        raise BadSubmissions(
            f"{folder} has no exercises in it: it should have a folder for each student that contains their notebooks, "
            "under the names they had in exercises/"
        )
    return found


def _students(folder: Path) -> list[tuple[str, Path]]:
    """Return each student's unique name and folder, sorted by name."""
    found: dict[str, Path] = {}
    for path in sorted(path for path in folder.iterdir() if path.is_dir() or path.is_symlink()):
        name = text = as_text(path.name)
        while name in found:
            name = f"{text} ({sum(known.startswith(text) for known in found) + 1})"
        found[name] = path
    return sorted(found.items())


def _of_student(student: str, folder: Path, lessons: set[str]) -> list[SubmittedNotebook]:
    """Return a notebook per lesson, or one entry with the reason why there is none."""
    if folder.is_symlink():
        return [
            SubmittedNotebook(student, folder, folder, trouble="Not graded: the folder is a link to another place.")
        ]
    by_lesson: dict[str, list[Path]] = {}
    notebooks = [path for path in files_below(folder) if path.suffix == ".ipynb" and path.stem[:2] in lessons]
    for path in sorted(notebooks, key=lambda path: (len(path.parts), len(path.name), path)):
        by_lesson.setdefault(path.stem[:2], []).append(path)
    if not by_lesson and not folder.name.startswith("."):
        return [SubmittedNotebook(student, folder, folder, trouble=NOTHING)]
    return [
        SubmittedNotebook(student, first, folder, tuple(others)) for _, (first, *others) in sorted(by_lesson.items())
    ]


def files_below(student: Path) -> list[Path]:
    """Return all files of a student, least nested first; beyond `MOST_FILES`, the deepest are left out."""
    files: list[Path] = []
    folders = deque([student])
    while folders:
        folder = folders.popleft()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if len(files) == MOST_FILES:
                        say = f"course: {as_text(student.name)}: more than {MOST_FILES} files; the deepest are left out"
                        print(say, file=sys.stderr)
                        return files
                    files.append(Path(entry.path))
                    if entry.is_dir(follow_symlinks=False) and entry.name != ".ipynb_checkpoints":
                        folders.append(files[-1])
        except OSError:  # unreadable, or gone
            continue
    return files
