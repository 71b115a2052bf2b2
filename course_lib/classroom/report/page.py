"""Fill in `report.html`, the report of a class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from course_lib.checks.prediction import LETTERS, Choice, Prediction
from course_lib.classroom.report.history import History
from course_lib.classroom.report.tomorrow import efforts, points
from course_lib.classroom.server.tally import ROUNDS, Answers, Trials
from course_lib.grading.pages import count_of, render

OTHER = Choice("another number", None, believes="an answer that matches no choice")

Row = tuple[str, Choice, list[tuple[int, int]]]  # letter, choice, and (chosen, answered) counts per round


@dataclass(frozen=True)
class Belief:
    """A misconception and how many learners had it; `after` is None if nobody was asked again."""

    number: str  # question number
    words: str
    before: int
    after: int | None

    @property
    def last(self) -> int:
        return self.before if self.after is None else self.after


def report_page(history: History) -> str:
    """Return the report as an HTML page."""
    asked = [(question, _answers(history, question.number)) for question in history.course.questions.values()]
    answered = [(question, rounds) for question, rounds in asked if any(each.said for each in rounds)]
    beliefs = [belief for question, rounds in answered for belief in _beliefs(question, *rounds)]
    tried = [(each, history.tally.exercises.get(each.number)) for each in history.course.exercises.values()]
    return render(
        "report.html",
        folder=Path(__file__).parent,
        title=f"{history.title}: report",
        skip_to="To the report",
        wide=True,
        history=history,
        in_short=_in_short(history),
        points=points(history),
        efforts=efforts(history),
        span=_span(history),
        beliefs=sorted(beliefs, key=lambda each: (-each.last, -each.before, each.number)),
        questions=[(question, _rows(question, rounds)) for question, rounds in answered],
        trials=[(exercise, trials, _mistakes(trials)) for exercise, trials in tried if trials is not None],
    )


def _span(history: History) -> tuple[float, float]:
    """Return when the first section was reached, and how many seconds later the last one was."""
    times = [moment for visit in history.visits for moment in visit.times]
    return (min(times), max(1.0, max(times) - min(times))) if times else (0.0, 1.0)


def _in_short(history: History) -> str:
    if not history.events:
        return f"{count_of(len(history.names), 'learner')}; nothing has happened yet."
    times = [event["received"] for _, event in history.events]
    parts = [
        count_of(len(history.names), "learner"),
        f"from {history.clock(min(times))} to {history.clock(max(times))}",
        f"{count_of(len({asking.number for asking in history.tally.askings.values()}), 'question')} asked",
        f"{count_of(len(history.of_kind('checked')), 'check')} run",
        f"{count_of(len(history.hands), 'hand')} raised",
        f"“slower, please” {count_of(len(history.of_kind('slower')), 'time')}",
    ]
    return ", ".join(parts) + "."


def _answers(history: History, number: str) -> list[Answers]:
    """Return the answers to a question before and after."""
    return [history.tally.answers.get((number, round_), Answers()) for round_ in ROUNDS]


def _beliefs(question: Prediction, before: Answers, after: Answers) -> list[Belief]:
    """Return each misconception of a question that at least one learner had."""
    made = []
    for place, choice in enumerate(question.choices):
        if choice.believes and (before.counts[place] or after.counts[place]):
            again = after.counts[place] if after.said else None
            made.append(Belief(question.number, choice.believes, before.counts[place], again))
    return made


def _rows(question: Prediction, rounds: list[Answers]) -> list[Row]:
    """Return a row per choice, plus one for numbers that match no choice."""
    rows = [
        ("" if question.typed else f"{LETTERS[place]}) ", choice, _shares(rounds, place))
        for place, choice in enumerate(question.choices)
    ]
    return rows + ([("", OTHER, _shares(rounds, -1))] if any(each.counts[-1] for each in rounds) else [])


def _shares(rounds: list[Answers], place: int) -> list[tuple[int, int]]:
    return [(each.counts[place], len(each.said)) for each in rounds]


def _mistakes(trials: Trials) -> list[tuple[str, str, int]]:
    """Return (part, mistake, number of learners) tuples, most frequent first."""
    made = [(part, mistake, len(who)) for (part, mistake), who in trials.mistakes.items()]
    return sorted(made, key=lambda each: (-each[2], each[:2]))
