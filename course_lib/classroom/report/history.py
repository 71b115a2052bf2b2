"""What happened in a class, by its record: hands and how long they waited, when sections were reached, who did what."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from course_lib.classroom.content import Content, content
from course_lib.classroom.protocol import Event
from course_lib.classroom.server.record import BadRecord, read, read_events
from course_lib.classroom.server.tally import INSTRUCTOR, Tally


@dataclass
class RaisedHand:
    """Somebody was stuck."""

    learner: str
    since: float
    lesson: str
    section: str
    until: float | None = None  # nobody came
    showed: bool = False  # a cell


@dataclass(frozen=True)
class Visit:
    """A section, and when each learner came to it first."""

    lesson: str
    section: str
    times: list[float]  # in order

    @property
    def half(self) -> float:
        """When half of those had come who came at all."""
        return self.times[(len(self.times) - 1) // 2]


@dataclass
class Marks:
    """What one learner has said and tried."""

    said: dict[str, dict[str, bool]] = field(default_factory=lambda: defaultdict(dict))  # by round and question: right
    points: dict[str, float] = field(default_factory=dict)  # of each exercise that was tried, the most
    passed: set[str] = field(default_factory=set)
    hands: int = 0
    last: tuple[str, str] = ("", "")  # lesson and section

    def right(self, round_: str) -> str:
        """How many answers of a round were right, of how many."""
        return f"{sum(self.said[round_].values())} of {len(self.said[round_])}" if self.said[round_] else ""


@dataclass(frozen=True)
class History:
    """A class that has been held."""

    title: str
    names: dict[str, str]  # of the learners, in the order of joining
    events: list[tuple[str, Event]]
    tally: Tally

    @property
    def course(self) -> Content:
        return self.tally.content

    @cached_property
    def hands(self) -> list[RaisedHand]:
        """In the order of raising."""
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
        """Sections that somebody has reached, in the order of the course."""
        first: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        for learner, event in self.of_kind("reached"):
            first[event["lesson"], event["section"]].setdefault(learner, event["received"])
        places = [(lesson, section) for lesson, sections in self.course.sections.items() for section in sections]
        return [Visit(*place, sorted(first[place].values())) for place in places if place in first]

    @cached_property
    def marks(self) -> dict[str, Marks]:
        """By learner."""
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
        """The events of one kind, each with whose it is."""
        return [(learner, event) for learner, event in self.events if event["kind"] == kind]

    def name(self, learner: str) -> str:
        return self.names.get(learner, "somebody")

    def clock(self, seconds: float) -> str:
        """A time of the day; with the day, if the class has met on several."""
        return time.strftime("%H:%M" if self._days < 2 else "%Y-%m-%d %H:%M", time.localtime(seconds))

    @cached_property
    def _days(self) -> int:
        return len({time.localtime(event["received"])[:3] for _, event in self.events})


def read_history(path: Path) -> History:
    """The history of a record, also while the class goes on. Raises `BadRecord` for another file."""
    if not path.is_file():
        raise BadRecord(f"{path}: there is no such file; give the record that `course class` has named")
    about = dict(read(path, "SELECT key, value FROM about"))
    names = dict(read(path, "SELECT learner, name FROM learners ORDER BY joined"))
    tally, events = Tally(content()), list(read_events(path))
    for learner, event in events:
        tally.apply(learner, event)
    known = [(learner, event) for learner, event in events if learner in names or learner == INSTRUCTOR]
    return History(about.get("title", "Class"), names, known, tally)
