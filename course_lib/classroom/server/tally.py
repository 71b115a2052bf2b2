"""Counts of what a class has said and done. The same events in the same order give the same counts.

The record stores the events, and the tally is their sum. The instructor's actions are events, too, so a class that is
restarted from its record continues where it left off.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from course_lib.checks.prediction import Prediction
from course_lib.classroom.content import Content
from course_lib.classroom.protocol import Event

INSTRUCTOR = ""  # the learner id of the instructor's actions
ROUNDS = ("before", "after")


@dataclass
class Answers:
    """Each learner's answer to a question, and the count of each choice; -1 is a number that matches no choice."""

    said: dict[str, Any] = field(default_factory=dict)  # by learner
    counts: Counter[int] = field(default_factory=Counter)  # by index of the choice

    def put(self, learner: str, said: Any, question: Prediction) -> None:
        """Record a learner's answer, replacing an earlier one."""
        if learner in self.said:
            self.counts[_choice(question, self.said[learner])] -= 1
        self.said[learner] = said
        self.counts[_choice(question, said)] += 1


def _choice(question: Prediction, said: Any) -> int:
    choice = question.choice_of(said)
    return -1 if choice is None else question.choices.index(choice)


@dataclass
class Asking:
    """One instance of asking the class a question."""

    asked: str
    number: str
    round: str
    ends: float = 0.0  # when the countdown is over, if there is one: of the vote, then of the discussion
    open: bool = True
    discussed: bool = False  # the vote is closed, and neighbors discuss
    revealed: bool = False
    answers: Answers = field(default_factory=Answers)


@dataclass
class Hand:
    """The raised hand of a learner who is stuck."""

    learner: str
    since: float
    lesson: str = ""
    section: str = ""
    source: str | None = None


@dataclass
class Question:
    """A question that a learner asks the instructor."""

    question: str  # the id of its event
    learner: str
    text: str
    since: float
    lesson: str = ""
    section: str = ""
    votes: set[str] = field(default_factory=set)  # learners who want to know, too
    open: bool = True


@dataclass(frozen=True)
class Call:
    """The section to which the instructor has called everyone."""

    call: str  # the id of its event
    lesson: str
    section: str
    since: float


@dataclass
class Trials:
    """The learners' results on one exercise."""

    passed: dict[str, None] = field(default_factory=dict)  # learners, in the order in which they passed
    trying: Counter[str] = field(default_factory=Counter)  # failed checks of each learner who has not passed yet
    mistakes: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))  # value: who made it


@dataclass
class Tally:
    """The counts of a class. `apply` adds one event; `place`, `hands` and `askings` hold the state of each learner."""

    content: Content
    answers: dict[tuple[str, str], Answers] = field(default_factory=lambda: defaultdict(Answers))  # by number and round
    askings: dict[str, Asking] = field(default_factory=dict)
    current: str = ""  # id of the asking that learners see
    exercises: dict[str, Trials] = field(default_factory=lambda: defaultdict(Trials))
    working_on: dict[str, str] = field(default_factory=dict)  # learner -> exercise, until the class moves on
    place: dict[str, tuple[str, str]] = field(default_factory=dict)  # learner -> (lesson, section)
    here: Counter[tuple[str, str]] = field(default_factory=Counter)
    been: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    hands: dict[str, Hand] = field(default_factory=dict)  # in the order in which they were raised
    slower: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)  # learners who are done with the current task
    questions: dict[str, Question] = field(default_factory=dict)
    board: list[Question] = field(default_factory=list)  # open questions, most wanted first
    call: Call | None = None
    stage: dict[str, str] = field(default_factory=dict)  # what the projector shows: a learner's cell or question

    @property
    def shown(self) -> Asking | None:
        """The asking that learners see, if any."""
        return self.askings.get(self.current)

    def latest(self, number: str) -> Asking | None:
        """Return the latest asking of a question, or None."""
        return next((asking for asking in reversed(self.askings.values()) if asking.number == number), None)

    def apply(self, learner: str, event: Event) -> None:
        """Count one valid event."""
        if self._is_of_this_course(event):
            getattr(self, f"_{event['kind']}")(learner, event)

    def _is_of_this_course(self, event: Event) -> bool:
        """Whether the course still has what an event refers to: a record may be older than the course."""
        number, said = event.get("number"), event.get("said")
        if event["kind"] == "go":
            return event["section"] in self.content.sections.get(event["lesson"], ())
        if "question" in event and event["question"] not in self.questions:
            return False
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
        """Count nothing: `predicted` has already counted the answer."""

    def _answered(self, learner: str, event: Event) -> None:
        asking = self.askings[event["asked"]]
        question = self.content.questions[asking.number]
        asking.answers.put(learner, event["said"], question)
        self.answers[asking.number, asking.round].put(learner, event["said"], question)

    def _checked(self, learner: str, event: Event) -> None:
        trials = self.exercises[event["number"]]
        self.working_on[learner] = event["number"]
        if event["passed"]:
            trials.trying.pop(learner, None)
            trials.passed.setdefault(learner)
        else:
            if learner not in trials.passed:
                trials.trying[learner] += 1
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
        """Raise the learner's hand, too: showing a cell asks for help."""
        self._stuck(learner, {**event, "on": True})
        self.hands[learner].source = event["source"]

    def _slower(self, learner: str, _: Event) -> None:
        self.slower.add(learner)

    def _done(self, learner: str, event: Event) -> None:
        (self.done.add if event["on"] else self.done.discard)(learner)

    def _wondered(self, learner: str, event: Event) -> None:
        place = {name: event[name] for name in ("text", "lesson", "section")}
        self.questions[event["id"]] = Question(event["id"], learner, since=event["received"], **place)
        self._sort_board()

    def _seconded(self, learner: str, event: Event) -> None:
        votes = self.questions[event["question"]].votes
        (votes.add if event["on"] else votes.discard)(learner)
        self._sort_board()

    def _sort_board(self) -> None:
        waiting = [each for each in self.questions.values() if each.open]
        self.board = sorted(waiting, key=lambda each: (-len(each.votes), each.since))

    def _ask(self, _: str, event: Event) -> None:
        if self.shown is not None:
            self.shown.open = False
        self.askings[event["asked"]] = Asking(event["asked"], event["number"], event["round"], event.get("ends", 0.0))
        self.current, self.stage = event["asked"], {}
        self.working_on.clear()

    def _discuss(self, _: str, event: Event) -> None:
        asking = self.askings[event["asked"]]
        asking.open, asking.discussed, asking.ends = False, True, event["ends"]

    def _close(self, _: str, event: Event) -> None:
        """Accept no more answers. An asking that was already revealed disappears from the learners' view."""
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

    def _fresh(self, _: str, __: Event) -> None:
        """Start something new, which nobody is done with yet."""
        self.done.clear()

    def _settle(self, _: str, event: Event) -> None:
        self.questions[event["question"]].open = False
        self._sort_board()
        if self.stage.get("question") == event["question"]:
            self.stage = {}

    def _show(self, _: str, event: Event) -> None:
        self.stage = {name: event[name] for name in ("source", "question") if event.get(name)}

    def _go(self, _: str, event: Event) -> None:
        self.call = Call(event["id"], event["lesson"], event["section"], event["received"])
        self.done.clear()
        self.working_on.clear()
