"""What to say when the class meets again: a belief that survived, a long exercise, and where the class was lost."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from course_lib.authoring.outline import outlines
from course_lib.checks.exercise import Exercise
from course_lib.classroom.agenda import BREAK
from course_lib.classroom.content import plain_heading
from course_lib.classroom.report.history import History
from course_lib.classroom.server.tally import ROUNDS, Answers

FEWEST = 2  # learners before we say that a belief survived, or that a section lost people

Place = tuple[str, str]  # lesson and section


@dataclass(frozen=True)
class Effort:
    """How long an exercise took: minutes from opening it to the check that passed, or the last one."""

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
    opened: dict[tuple[str, str], float] = {}
    worked: dict[tuple[str, str], float] = {}
    passed: set[tuple[str, str]] = set()
    headings = {f"{each.number} {each.title}": each.number for each in history.course.exercises.values()}
    for learner, event in history.events:
        key = (event["number"] if event["kind"] == "checked" else headings.get(event.get("section", ""), ""), learner)
        if event["kind"] == "reached" and key[0]:
            opened.setdefault(key, event["received"])
        elif event["kind"] == "checked" and key not in passed:
            spent = event["received"] - opened.get(key, event["received"])
            worked[key] = worked.get(key, 0.0) + (spent if spent < 60 * BREAK else 0.0)
            opened[key] = event["received"]
            passed |= {key} if event["passed"] else set()
    found = []
    for number, exercise in history.course.exercises.items():
        minutes = sorted(seconds / 60 for key, seconds in worked.items() if key[0] == number)
        if minutes:
            found.append(Effort(exercise, minutes, sum(key[0] == number for key in passed)))
    return found


def lost(history: History) -> tuple[dict[Place, set[str]], dict[str, Place]]:
    """Return the learners who were lost in each section, and the section of each question.

    Learners are lost if they are stuck, ask to slow down, or have a question or vote for one. A phone is in no section:
    its learner counts in the section to which the class was last called, or in which it was last asked something.
    """
    found: dict[Place, set[str]] = defaultdict(set)
    asks = {
        number: (lesson.number, plain_heading(section.heading))
        for lesson in outlines().values()
        for section in lesson.sections
        for number in section.asked
    }
    place: dict[str, Place] = {}
    wondered: dict[str, Place] = {}
    class_is_at = ("", "")
    for learner, event in history.events:
        kind, where = event["kind"], (event.get("lesson", ""), event.get("section", ""))
        if not where[1]:
            where = place.get(learner, class_is_at)
        if kind in ("go", "ask"):
            class_is_at = asks.get(event["number"], class_is_at) if kind == "ask" else where
        elif kind == "reached":
            place[learner] = where
        elif kind == "seconded" and event["on"]:
            found[wondered.get(event["question"], where)].add(learner)
        elif kind in ("slower", "wondered", "showed") or (kind == "stuck" and event["on"]):
            found[where].add(learner)
            if kind == "wondered":
                wondered[event["id"]] = where
    found.pop(("", ""), None)
    return found, wondered


def points(history: History) -> list[Point]:
    """Return at most three things to say."""
    return [point for point in (_belief(history), _effort(history), _section(history)) if point is not None]


def _belief(history: History) -> Point | None:
    """Return the misconception that most learners still had when asked again, or else the most frequent one."""
    best, most = None, (False, 0)
    for number, question in history.course.questions.items():
        before, after = (history.tally.answers.get((number, round_), Answers()) for round_ in ROUNDS)
        asked = after if after.said else before
        for place, choice in enumerate(question.choices):
            held = asked.counts[place]
            rank = (bool(after.said) and held >= FEWEST, held)
            if choice.believes and held and rank > most:
                best, most = (question, choice, before.counts[place], held, asked, asked is after), rank
    if best is None:
        return None
    question, choice, first, held, asked, is_again = best
    if is_again:
        was = f" ({first} at first)" if first != held else ""
        seen = f"{held} of {len(asked.said)} still believed this in {question.number}{was}. {choice.why}"
    else:
        seen = f"{held} of {len(asked.said)} believed this in {question.number}, and were not asked again. {choice.why}"
    return Point(
        choice.believes,
        seen.strip(),
        f"The right answer is “{question.with_unit(question.right.says)}”. {question.right.why}",
    )


def _effort(history: History) -> Point | None:
    """Return the exercise that took longest."""
    tried = [each for each in efforts(history) if each.middle > 0 or each.passed < len(each.minutes)]
    if not tried:
        return None
    longest = max(tried, key=lambda each: (each.middle, len(each.minutes) - each.passed))
    seen = (
        f"It took a median of {longest.middle:.0f} minutes, without breaks, and is meant to take "
        f"{longest.exercise.minutes}. {longest.passed} of {len(longest.minutes)} passed."
    )
    mistakes = history.tally.exercises[longest.exercise.number].mistakes
    named = [(len(who), mistake) for (_, mistake), who in mistakes.items() if mistake]
    often = f"The most frequent mistake: {max(named)[1]}" if named else "Show one solution, and where it is explained: "
    where = "" if named else f"{longest.exercise.where_to_read}."
    return Point(f"Exercise {longest.exercise.number}, {longest.exercise.title}", seen, f"{often}{where}")


def _section(history: History) -> Point | None:
    """Return the section in which most learners were lost."""
    found, wondered = lost(history)
    (lesson, section), who = max(found.items(), key=lambda each: len(each[1]), default=(("", ""), set()))
    if len(who) < FEWEST:
        return None
    asked = [each for key, each in history.tally.questions.items() if wondered.get(key) == (lesson, section)]
    open_ = max((each for each in asked if each.open), key=lambda each: len(each.votes), default=None)
    say = f"Begin there, with the question that nobody answered: “{open_.text}”" if open_ else "Begin there, slowly."
    seen = f"{len(who)} learners were stuck, had a question, or asked to slow down."
    return Point(f"{lesson} · {section}", seen, say)
