"""What to say when the class meets again: a belief that survived, a long exercise, and where the class was lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median

from course_lib.checks.exercise import Exercise
from course_lib.classroom.report.history import History
from course_lib.classroom.server.tally import ROUNDS, Answers

FEWEST = 2  # hands, calls for slower and questions before we say that a section lost people


@dataclass(frozen=True)
class Effort:
    """How long an exercise took: minutes from a learner's first check to the one that passed, or to the last one."""

    exercise: Exercise
    minutes: list[float]  # sorted, one per learner
    passed: int

    @property
    def middle(self) -> float:
        return median(self.minutes)


@dataclass(frozen=True)
class Point:
    """One thing to say: what was seen, and the sentence that may help."""

    title: str
    seen: str
    say: str


def efforts(history: History) -> list[Effort]:
    """Return the exercises that anyone has checked, in course order."""
    first: dict[tuple[str, str], float] = {}
    last: dict[tuple[str, str], float] = {}
    passed: set[tuple[str, str]] = set()
    for learner, event in history.of_kind("checked"):
        key = (event["number"], learner)
        if key not in passed:
            first.setdefault(key, event["received"])
            last[key] = event["received"]
            passed |= {key} if event["passed"] else set()
    found = []
    for number, exercise in history.course.exercises.items():
        minutes = sorted((last[key] - first[key]) / 60 for key in first if key[0] == number)
        if minutes:
            found.append(Effort(exercise, minutes, sum(key[0] == number for key in passed)))
    return found


def lost(history: History) -> Counter[tuple[str, str]]:
    """Return, by lesson and section, how often learners were stuck, asked for less speed, or had a question."""
    counted: Counter[tuple[str, str]] = Counter()
    place: dict[str, tuple[str, str]] = {}
    called = ("", "")
    for learner, event in history.events:
        where = (event.get("lesson", ""), event.get("section", ""))
        if event["kind"] == "go":
            called = where
        elif event["kind"] == "reached":
            place[learner] = where
        elif event["kind"] in ("slower", "wondered") or (event["kind"] == "stuck" and event["on"]):
            counted[where if where[1] else place.get(learner, called)] += 1
    del counted["", ""]
    return counted


def points(history: History) -> list[Point]:
    """Return at most three things to say."""
    return [point for point in (_belief(history), _effort(history), _section(history)) if point is not None]


def _belief(history: History) -> Point | None:
    """Return the misconception that most learners held when they were last asked."""
    best, most = None, 0
    for number, question in history.course.questions.items():
        before, after = (history.tally.answers.get((number, round_), Answers()) for round_ in ROUNDS)
        asked = after if after.said else before
        for place, choice in enumerate(question.choices):
            if choice.believes and asked.counts[place] > most:
                best, most = (question, choice, before.counts[place], asked), asked.counts[place]
    if best is None:
        return None
    question, choice, first, asked = best
    again = f", after {first} at first" if asked.counts and first != most else ""
    seen = f"{most} of {len(asked.said)} still believed this in {question.number}{again}. {choice.why}"
    return Point(
        choice.believes, seen.strip(), f"Right is {question.with_unit(question.right.says)}. {question.right.why}"
    )


def _effort(history: History) -> Point | None:
    """Return the exercise with the longest way from the first check to the last."""
    tried = [each for each in efforts(history) if each.middle > 0 or each.passed < len(each.minutes)]
    if not tried:
        return None
    longest = max(tried, key=lambda each: (each.middle, len(each.minutes) - each.passed))
    seen = (
        f"The median was {longest.middle:.0f} minutes from the first check to the last; {longest.passed} of "
        f"{len(longest.minutes)} passed. It is meant to take {longest.exercise.minutes}."
    )
    mistakes = history.tally.exercises[longest.exercise.number].mistakes
    named = [(len(who), mistake) for (_, mistake), who in mistakes.items() if mistake]
    often = f"The most frequent mistake: {max(named)[1]}" if named else "Show one solution, and where it is explained: "
    where = "" if named else f"{longest.exercise.where_to_read}."
    return Point(f"Exercise {longest.exercise.number}, {longest.exercise.title}", seen, f"{often}{where}")


def _section(history: History) -> Point | None:
    """Return the section with the most hands, calls for slower and questions."""
    found = lost(history).most_common(1)
    if not found or found[0][1] < FEWEST:
        return None
    (lesson, section), times = found[0]
    asked = [each for each in history.tally.questions.values() if (each.lesson, each.section) == (lesson, section)]
    open_ = max((each for each in asked if each.open), key=lambda each: len(each.votes), default=None)
    say = f"Begin there, with the question that nobody answered: “{open_.text}”" if open_ else "Begin there, slowly."
    return Point(
        f"{lesson} · {section}", f"Learners were stuck, asked for less speed or had a question {times} times.", say
    )
