"""What was graded: the marks of a notebook, kept in a file of their own."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from course_lib.checks import exercises
from course_lib.course_files import write_whole


@dataclass(frozen=True)
class Mark:
    """What one exercise earned, part by part, and what its student is told."""

    number: str
    parts: dict[str, int]
    remarks: dict[str, str] = field(default_factory=dict)  # by part
    attempted: bool = True
    causes: dict[str, str] = field(default_factory=dict)  # by part, where the mistake is known
    by_clock: list[str] = field(default_factory=list)  # parts that were lost because their time was over

    @property
    def points(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True)
class Record:
    """A graded notebook, as it is kept in a file."""

    student: str
    notebook: str
    key: str
    marks: list[Mark]
    problem: str = ""  # with the notebook as a whole
    stopped_by_clock: bool = False  # as a whole

    @property
    def flagged(self) -> bool:
        """Whether a clock decided any of it: a busy machine may have cost it points."""
        return self.stopped_by_clock or any(mark.by_clock for mark in self.marks)

    @property
    def points(self) -> int:
        return sum(mark.points for mark in self.marks)

    @property
    def most(self) -> int:
        return sum(exercises()[mark.number].points for mark in self.marks)

    def save(self, path: Path) -> None:
        """Write it to a file, which is whole or not there."""
        write_whole(path, json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> Record:
        return cls.of_fields(json.loads(path.read_text()))

    @classmethod
    def of_fields(cls, fields: dict[str, Any]) -> Record:
        """The record that `asdict` took apart."""
        return cls(**{**fields, "marks": [Mark(**mark) for mark in fields["marks"]]})

    @classmethod
    def known(cls, path: Path, key: str) -> Record | None:
        """The record in this file, if it is whole and of what has this key."""
        try:
            record = cls.load(path)
            fits = all(mark.parts.keys() == exercises()[mark.number].parts.keys() for mark in record.marks)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return record if fits and record.key == key else None
