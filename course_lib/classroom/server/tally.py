"""What a class has said and done so far, counted as it comes: the same events in the same order give the same counts.

The record keeps the events, the tally is what they add up to. Instructor's actions are events, too, of nobody's: so a
class that is started again from its record is where it was.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from course_lib.checks.prediction import Prediction
from course_lib.classroom.content import Content
from course_lib.classroom.protocol import Event

INSTRUCTOR = ""  # whose events the instructor's actions are
ROUNDS = ("before", "after")


@dataclass
class Answers:
    """Who says what to a question, and how many say the same. An answer that nobody has foreseen is of choice -1."""

    said: dict[str, Any] = field(default_factory=dict)  # by learner
    counts: Counter[int] = field(default_factory=Counter)  # by the place of the choice

    def put(self, learner: str, said: Any, question: Prediction) -> None:
        """Take somebody's answer, in place of an earlier one."""
        if learner in self.said:
            self.counts[_choice(question, self.said[learner])] -= 1
        self.said[learner] = said
        self.counts[_choice(question, said)] += 1


def _choice(question: Prediction, said: Any) -> int:
    choice = question.choice_of(said)
    return -1 if choice is None else question.choices.index(choice)


@dataclass
class Asking:
    """A question that was put to the class, once."""

    asked: str
    number: str
    round: str
    open: bool = True
    revealed: bool = False
    answers: Answers = field(default_factory=Answers)


@dataclass
class Hand:
    """Somebody who is stuck."""

    learner: str
    since: float
    lesson: str = ""
    section: str = ""
    source: str | None = None


@dataclass
class Trials:
    """What became of the tries of one exercise."""

    passed: dict[str, None] = field(default_factory=dict)  # learners, in the order of passing
    trying: dict[str, None] = field(default_factory=dict)
    mistakes: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))  # who has made it


@dataclass
class Tally:
    """Counts of a class. `apply` takes one event; what it says of a learner is in `place`, `hands` and `askings`."""

    content: Content
    answers: dict[tuple[str, str], Answers] = field(default_factory=lambda: defaultdict(Answers))  # by number and round
    askings: dict[str, Asking] = field(default_factory=dict)
    current: str = ""  # the asking that learners see
    exercises: dict[str, Trials] = field(default_factory=lambda: defaultdict(Trials))
    place: dict[str, tuple[str, str]] = field(default_factory=dict)  # where each learner is
    here: Counter[tuple[str, str]] = field(default_factory=Counter)
    been: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    hands: dict[str, Hand] = field(default_factory=dict)  # in the order of raising
    slower: set[str] = field(default_factory=set)

    @property
    def shown(self) -> Asking | None:
        """The question that learners see, if there is one."""
        return self.askings.get(self.current)

    def latest(self, number: str) -> Asking | None:
        """The last time that a question was asked."""
        return next((asking for asking in reversed(self.askings.values()) if asking.number == number), None)

    def apply(self, learner: str, event: Event) -> None:
        """Count one event that was found good."""
        if self._is_of_this_course(event):
            getattr(self, f"_{event['kind']}")(learner, event)

    def _is_of_this_course(self, event: Event) -> bool:
        """Whether there still is what an event is about: a record may be older than the course."""
        number, said = event.get("number"), event.get("said")
        if "asked" in event and event["kind"] != "ask":
            if event["asked"] not in self.askings:
                return False
            number = self.askings[event["asked"]].number
        if number is None:
            return True
        if event["kind"] == "checked":
            return number in self.content.exercises
        return number in self.content.questions and (said is None or self.content.questions[number].takes(said))

    def _predicted(self, learner: str, event: Event) -> None:
        question = self.content.questions[event["number"]]
        self.answers[question.number, "before"].put(learner, event["said"], question)

    def _revealed(self, learner: str, event: Event) -> None:
        """Nothing to count: what was said before the run is known."""

    def _answered(self, learner: str, event: Event) -> None:
        asking = self.askings[event["asked"]]
        question = self.content.questions[asking.number]
        asking.answers.put(learner, event["said"], question)
        self.answers[asking.number, asking.round].put(learner, event["said"], question)

    def _checked(self, learner: str, event: Event) -> None:
        trials = self.exercises[event["number"]]
        if event["passed"]:
            trials.trying.pop(learner, None)
            trials.passed.setdefault(learner)
        else:
            if learner not in trials.passed:
                trials.trying.setdefault(learner)
            trials.mistakes[event["part"], event["mistake"]].add(learner)

    def _reached(self, learner: str, event: Event) -> None:
        place = (event["lesson"], event["section"])
        if not event["section"]:
            return
        before = self.place.get(learner)
        if before is not None:
            self.here[before] -= 1
        self.place[learner] = place
        self.here[place] += 1
        self.been[place].add(learner)

    def _stuck(self, learner: str, event: Event) -> None:
        if not event["on"]:
            self.hands.pop(learner, None)
            return
        hand = self.hands.setdefault(learner, Hand(learner, event["received"]))
        hand.lesson, hand.section = event["lesson"], event["section"]

    def _showed(self, learner: str, event: Event) -> None:
        """A shown cell is a question, too: it raises the hand."""
        self._stuck(learner, {**event, "on": True})
        self.hands[learner].source = event["source"]

    def _slower(self, learner: str, _: Event) -> None:
        self.slower.add(learner)

    def _ask(self, _: str, event: Event) -> None:
        if self.shown is not None:
            self.shown.open = False
        self.askings[event["asked"]] = Asking(event["asked"], event["number"], event["round"])
        self.current = event["asked"]

    def _close(self, _: str, event: Event) -> None:
        """Take no more answers; one that was revealed, too, goes from the learners' sight."""
        asking = self.askings[event["asked"]]
        if asking.revealed and self.current == asking.asked:
            self.current = ""
        asking.open = False

    def _reveal(self, _: str, event: Event) -> None:
        asking = self.askings[event["asked"]]
        asking.open, asking.revealed = False, True

    def _lower(self, _: str, event: Event) -> None:
        self.hands.pop(event["learner"], None)

    def _faster(self, _: str, __: Event) -> None:
        self.slower.clear()
