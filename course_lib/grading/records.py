"""The marks of a graded notebook, saved as one JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from course_lib.checks import exercises
from course_lib.course_files import write_whole


@dataclass(frozen=True)
class Mark:
    """The points of one exercise by part, and the remarks for the student."""

    number: str
    parts: dict[str, int]
    remarks: dict[str, str] = field(default_factory=dict)  # by part
    attempted: bool = True
    causes: dict[str, str] = field(default_factory=dict)  # by part, for known mistakes
    by_clock: list[str] = field(default_factory=list)  # parts that hit a time limit

    @property
    def points(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True)
class Record:
    """A graded notebook."""

    student: str
    notebook: str
    key: str
    marks: list[Mark]
    problem: str = ""  # with the whole notebook
    stopped_by_clock: bool = False  # whether the whole notebook hit its time limit

    @property
    def flagged(self) -> bool:
        """Whether a time limit decided any of it: a busy machine may have cost points."""
        return self.stopped_by_clock or any(mark.by_clock for mark in self.marks)

    @property
    def points(self) -> int:
        return sum(mark.points for mark in self.marks)

    @property
    def most(self) -> int:
        return sum(exercises()[mark.number].points for mark in self.marks)

    def save(self, path: Path) -> None:
        """Write the record to a file atomically."""
        write_whole(path, json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> Record:
        return cls.of_fields(json.loads(path.read_text()))

    @classmethod
    def of_fields(cls, fields: dict[str, Any]) -> Record:
        """Build a record from the fields that `asdict` returned."""
        return cls(**{**fields, "marks": [Mark(**mark) for mark in fields["marks"]]})

    @classmethod
    def known(cls, path: Path, key: str) -> Record | None:
        """Return the record in this file if it is intact and has this key, else None."""
        try:
            record = cls.load(path)
            fits = all(mark.parts.keys() == exercises()[mark.number].parts.keys() for mark in record.marks)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return record if fits and record.key == key else None
