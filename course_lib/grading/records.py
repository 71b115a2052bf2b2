"""The marks of a graded notebook, saved as one JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from course_lib.checks.catalog import exercises
from course_lib.runtime.course_files import write_whole


@dataclass(frozen=True)
class Mark:
    """The points of one exercise by part, and the remarks for the student."""

    number: str
    parts: dict[str, int]
    remarks: dict[str, str] = field(default_factory=dict)  # by part
    attempted: bool = True
    causes: dict[str, str] = field(default_factory=dict)  # by part, for known mistakes
    by_clock: list[str] = field(default_factory=list)  # parts that hit a time limit
    not_measured: list[str] = field(default_factory=list)  # parts that earn nothing until the instructor has looked

    @property
    def points(self) -> int:
        return sum(self.parts.values())

    def is_possible(self) -> bool:
        """Whether an exercise can earn these points. A file may contain anything, such as 1000 or NaN."""
        most = exercises()[self.number].parts
        return (
            self.parts.keys() == most.keys()
            and all(type(earned) is int and 0 <= earned <= most[part] for part, earned in self.parts.items())
            and all(type(text) is str for said in (self.remarks, self.causes) for text in said.values())
            and {*self.remarks, *self.causes, *self.by_clock, *self.not_measured} <= most.keys()
            and type(self.attempted) is bool
        )


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
        """Whether a time limit affected the points, or something could not be measured: they may be too few."""
        return self.stopped_by_clock or any(mark.by_clock or mark.not_measured for mark in self.marks)

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

    def is_possible(self) -> bool:
        """Whether grading could have made this record: all texts are strings, and each mark is possible."""
        texts = (self.student, self.notebook, self.key, self.problem)
        numbers = [mark.number for mark in self.marks]
        return (
            all(type(text) is str for text in texts)
            and type(self.stopped_by_clock) is bool
            and len(set(numbers)) == len(numbers)
            and all(mark.is_possible() for mark in self.marks)
        )

    @classmethod
    def known(cls, path: Path, key: str) -> Record | None:
        """Return the record in this file if it is intact and has this key, else None."""
        try:
            record = cls.load(path)
            return record if record.key == key and record.is_possible() else None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
