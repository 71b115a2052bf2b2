"""Reconstruct a class from its record: raised hands and waiting times, section progress, and each learner's work."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from course_lib.classroom.content import Content, content
from course_lib.classroom.protocol import Event
from course_lib.classroom.server.record_file import BadRecord, read, read_events
from course_lib.classroom.server.tally import INSTRUCTOR, Tally


@dataclass
class RaisedHand:
    """A learner was stuck from `since` to `until`."""

    learner: str
    since: float
    lesson: str
    section: str
    until: float | None = None  # None if nobody came
    showed: bool = False  # whether the learner showed a cell


@dataclass(frozen=True)
class Visit:
    """A section, and the times at which learners first reached it."""

    lesson: str
    section: str
    times: list[float]  # sorted

    @property
    def half(self) -> float:
        """The time by which half of those who ever reached it had reached it."""
        return self.times[(len(self.times) - 1) // 2]


@dataclass
class Marks:
    """The answers and exercise results of one learner."""

    said: dict[str, dict[str, bool]] = field(default_factory=lambda: defaultdict(dict))  # round -> question -> is right
    points: dict[str, float] = field(default_factory=dict)  # best points of each attempted exercise
    passed: set[str] = field(default_factory=set)
    hands: int = 0
    last: tuple[str, str] = ("", "")  # lesson and section

    def right(self, round_: str) -> str:
        """Return the number of right answers in a round: "3 of 5"."""
        return f"{sum(self.said[round_].values())} of {len(self.said[round_])}" if self.said[round_] else ""


@dataclass(frozen=True)
class History:
    """The history of a class."""

    title: str
    names: dict[str, str]  # learner -> name, in the order of joining
    events: list[tuple[str, Event]]
    tally: Tally

    @property
    def course(self) -> Content:
        return self.tally.content

    @cached_property
    def hands(self) -> list[RaisedHand]:
        """The raised hands, in order."""
        raised: list[RaisedHand] = []
        up: dict[str, RaisedHand] = {}
        for learner, event in self.events:
            if event["kind"] == "showed" or (event["kind"] == "stuck" and event["on"]):
                if learner not in up:
                    up[learner] = RaisedHand(learner, event["received"], event["lesson"], event["section"])
                    raised.append(up[learner])
                up[learner].showed |= event["kind"] == "showed"
            elif event["kind"] in ("stuck", "lower"):
                lowered = up.pop(event.get("learner", learner), None)
                if lowered is not None:
                    lowered.until = event["received"]
        return raised

    @cached_property
    def visits(self) -> list[Visit]:
        """The sections that anyone has reached, in course order."""
        first: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        for learner, event in self.of_kind("reached"):
            first[event["lesson"], event["section"]].setdefault(learner, event["received"])
        places = [(lesson, section) for lesson, sections in self.course.sections.items() for section in sections]
        return [Visit(*place, sorted(first[place].values())) for place in places if place in first]

    @cached_property
    def marks(self) -> dict[str, Marks]:
        """The marks by learner."""
        marks = {learner: Marks() for learner in self.names}
        for (number, round_), answers in self.tally.answers.items():
            question = self.course.questions[number]
            for learner, said in answers.said.items():
                marks[learner].said[round_][number] = question.choice_of(said) is question.right
        for learner, event in self.of_kind("checked"):
            tried = marks[learner].points
            tried[event["number"]] = max(event["points"], tried.get(event["number"], 0.0))
            marks[learner].passed |= {event["number"]} if event["passed"] else set()
        for hand in self.hands:
            marks[hand.learner].hands += 1
        for learner, place in self.tally.place.items():
            marks[learner].last = place
        return marks

    def of_kind(self, kind: str) -> list[tuple[str, Event]]:
        """Return the events of one kind as (learner, event) pairs."""
        return [(learner, event) for learner, event in self.events if event["kind"] == kind]

    def name(self, learner: str) -> str:
        return self.names.get(learner, "somebody")

    def clock(self, seconds: float) -> str:
        """Format a time of day, with the date if the class met on several days."""
        return time.strftime("%H:%M" if self._days < 2 else "%Y-%m-%d %H:%M", time.localtime(seconds))

    @cached_property
    def _days(self) -> int:
        return len({time.localtime(event["received"])[:3] for _, event in self.events})


def read_history(path: Path) -> History:
    """Read a record, even while the class is running. Raises `BadRecord` if the file is not one."""
    if not path.is_file():
        raise BadRecord(f"{path}: there is no such file; give the record that `course class` printed")
    about = dict(read(path, "SELECT key, value FROM about"))
    names = dict(read(path, "SELECT learner, name FROM learners ORDER BY joined"))
    tally, events = Tally(content()), list(read_events(path))
    for learner, event in events:
        tally.apply(learner, event)
    known = [(learner, event) for learner, event in events if learner in names or learner == INSTRUCTOR]
    return History(about.get("title", "Class"), names, known, tally)
