"""A learner's progress: lessons, predictions, exercises, and what comes next, as text and as a box."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.checks import progress_file
from course_lib.checks.catalog import LESSONS, Lesson, address
from course_lib.checks.exercise import Exercise
from course_lib.checks.prediction import Prediction
from course_lib.checks.showing import box, plain


@dataclass(frozen=True)
class LessonProgress:
    """A learner's predictions and points in one lesson."""

    lesson: Lesson
    predictions: dict[str, dict]  # the progress file's entry for each
    exercises: tuple[Exercise, ...]
    entries: dict[str, dict[str, int]]  # the progress file's entry for each exercise

    @property
    def earned(self) -> int:
        return sum(self.entries[exercise.number]["points"] for exercise in self.exercises)

    @property
    def most(self) -> int:
        return sum(exercise.points for exercise in self.exercises)

    @property
    def passed(self) -> int:
        return sum(self.entries[exercise.number]["points"] == exercise.points for exercise in self.exercises)

    @property
    def said(self) -> int:
        return sum("said" in known for known in self.predictions.values())

    @property
    def right(self) -> int:
        return sum(known.get("right") is True for known in self.predictions.values())

    @property
    def is_read(self) -> bool:
        """Whether the learner has seen the result of every run, predicted or not."""
        return all("right" in known or "skipped" in known for known in self.predictions.values())

    @property
    def is_begun(self) -> bool:
        return any(self.predictions.values()) or any(any(entry.values()) for entry in self.entries.values())

    @property
    def unsolved(self) -> Exercise | None:
        """The first exercise with points left to earn."""
        return next((e for e in self.exercises if self.entries[e.number]["points"] < e.points), None)

    @property
    def predicted(self) -> str:
        """How many predictions were made and how many were right, as text."""
        if not self.said:
            return f"{len(self.predictions)} predictions to make"
        return f"{self.said} of {len(self.predictions)} predictions made, {self.right} right"


@dataclass(frozen=True)
class Overview:
    """A learner's progress in all lessons, in order. `str` gives the text, `as_box` the box for a notebook."""

    lessons: tuple[LessonProgress, ...]

    def next(self) -> tuple[str, str]:
        """Return what to do next and a link to its notebook, starting from the last lesson the learner has begun."""
        begun = [place for place, each in enumerate(self.lessons) if each.is_begun]
        start = begun[-1] if begun else 0
        for each in (*self.lessons[start:], *self.lessons[:start]):
            number, title = each.lesson.number, each.lesson.title
            if not each.is_read:
                words = f"lesson {number}, {title}"
                return (f"go on with {words}" if each.is_begun else words), address(number)
            if exercise := each.unsolved:
                heading = f"{exercise.number} {exercise.title}"
                return f"exercise {heading}", address(number, heading, folder="exercises")
        return "nothing: you have done it all", ""

    def __str__(self) -> str:
        lines = []
        for each in self.lessons:
            lines.append(
                f"lesson {each.lesson.number}  {_bar(each.earned, each.most)}  {each.earned} of {each.most} points"
            )
            if each.predictions:
                lines.append(f"    {each.predicted}")
            lines += [f"  {_line(exercise, each.entries[exercise.number])}" for exercise in each.exercises]
        return "\n".join([*lines, f"next: {self.next()[0]}"])

    def as_box(self) -> str:
        """Return the HTML of a box with a row per lesson."""
        words, where = self.next()
        link = f'<a href="{where}">{plain(words)}</a>' if where else plain(words)
        heads = "".join(f'<th scope="col">{name}</th>' for name in ("lesson", "predictions", "exercises", "points"))
        rows = "".join(map(_row, self.lessons))
        body = (
            f"<p><strong>Next</strong>: {link}</p><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        )
        return box("neutral", f"Your progress: {self.done}", body, "Your progress")

    @property
    def done(self) -> str:
        """How many predictions were made and how many exercises passed, as text."""
        made, asked = sum(each.said for each in self.lessons), sum(len(each.predictions) for each in self.lessons)
        passed, exercises = sum(each.passed for each in self.lessons), sum(len(each.exercises) for each in self.lessons)
        return f"{made} of {asked} predictions made, {passed} of {exercises} exercises passed"


def overview(exercises: dict[str, Exercise], predictions: dict[str, Prediction]) -> Overview:
    """Return the progress recorded in the progress file."""
    known = progress_file.read()
    return Overview(
        tuple(
            LessonProgress(
                lesson,
                {p: progress_file.prediction_of(known, p) for p in predictions if p[:2] == number},
                ours := tuple(each for each in exercises.values() if each.lesson == number),
                {each.number: progress_file.entry_of(known, each.number) for each in ours},
            )
            for number, lesson in LESSONS.items()
        )
    )


def _row(each: LessonProgress) -> str:
    lesson = each.lesson
    name = f"{lesson.number} · {plain(lesson.title)}"
    where = address(lesson.number)
    linked = f'<a href="{where}">{name}</a>' if where else name
    marks = " ".join(_mark(exercise, each.entries[exercise.number]) for exercise in each.exercises)
    label = f"points of lesson {lesson.number}: {each.earned} of {each.most}"
    meter = f'<meter min="0" max="{each.most}" value="{each.earned}" aria-label="{label}"></meter>'
    predicted = f"{each.said} of {len(each.predictions)}, {each.right} right" if each.predictions else ""
    return (
        f'<tr><th scope="row">{linked}</th>'
        f'<td class="course-whole">{predicted}</td><td>{marks}</td>'
        f'<td class="course-whole">{meter} {each.earned} of {each.most}</td></tr>'
    )


def _mark(exercise: Exercise, entry: dict[str, int]) -> str:
    sign, state = "○", "not tried"
    if entry["tries"]:
        sign, state = ("✓", "passed") if entry["points"] == exercise.points else ("✗", "not passed yet")
    heading = f"{exercise.number} {exercise.title}"
    where = address(exercise.lesson, heading, folder="exercises")
    text = f'<span role="img" aria-label="{state}">{sign}</span> {exercise.number}'
    linked = f'<a href="{where}" title="{plain(heading)}">{text}</a>' if where else text
    return f'<span class="course-whole">{linked}</span>'


def _line(exercise: Exercise, entry: dict[str, int]) -> str:
    text = f"{'✓' if entry['points'] == exercise.points else '·'} {exercise.number} {exercise.title}"
    details = [f"{entry['points']} of {exercise.points} points"]
    for name, one in (("tries", "try"), ("hints", "hint")):
        if entry[name]:
            details.append(f"{entry[name]} {one if entry[name] == 1 else name}")
    return f"{text}: {', '.join(details)}" if entry["tries"] else f"{text}: {exercise.minutes} minutes"


def _bar(earned: int, most: int, width: int = 20) -> str:
    done = width * earned // max(most, 1)
    return "█" * done + "░" * (width - done)
