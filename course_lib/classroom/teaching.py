"""Generate docs/teaching for `make teaching`: a page per lesson, and plans from half a day to a semester.

The pages are built from the lessons, the predictions, the exercises and the notes in docs/teaching/notes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from course_lib.authoring.outline import Outline, Section, outlines
from course_lib.checks.catalog import exercises, find_prediction
from course_lib.checks.exercise import Exercise, idea
from course_lib.checks.prediction import LETTERS, Prediction
from course_lib.classroom.agenda import BadAgenda, agenda_markdown, clock, lessons_from, make_agenda
from course_lib.runtime.course_files import course_folder

OPENING = "Before you begin"  # the heading of notes on the whole lesson


def read_notes(lesson: str) -> dict[str, str]:
    """Return a lesson's notes by section heading; empty if there are none."""
    path = course_folder() / "docs" / "teaching" / "notes" / f"{lesson}.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    pieces = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return {heading.strip(): body.strip() for heading, body in zip(pieces[::2], pieces[1::2], strict=True)}


@dataclass(frozen=True)
class Plan:
    """The options of one `course agenda` command."""

    name: str
    title: str
    days: int
    begin: int  # minutes after midnight
    until: int
    lessons: str
    exercise_minutes: int
    weekly: bool = False

    @property
    def command(self) -> str:
        """The command that `course agenda --plan` is short for, as a starting point if your hours differ."""
        words = f"course agenda --days {self.days} --from {clock(self.begin)} --until {clock(self.until)} "
        return f"{words}--lessons {self.lessons} --exercises {self.exercise_minutes}{' --weekly' * self.weekly}"

    @property
    def options(self) -> dict[str, Any]:
        """The options of `course agenda` that this plan sets."""
        names = ("days", "begin", "until", "lessons", "weekly")
        return {**{name: getattr(self, name) for name in names}, "exercises": self.exercise_minutes}


MORNING, LECTURE = 9 * 60 + 30, 10 * 60 + 15
PLANS = (
    Plan("half_a_day", "Half a day", 1, MORNING, 13 * 60, "00,02", 20),
    Plan("one_day", "One day", 1, MORNING, 17 * 60, "00-03", 20),
    Plan("two_days", "Two days", 2, MORNING, 17 * 60, "00-06,08", 10),
    Plan("semester", "A semester", 12, LECTURE, LECTURE + 90, "00-09", 30, weekly=True),
)


def find_plan(name: str) -> Plan:
    """Return the plan with this name. Raises `BadAgenda` if there is none."""
    found = next((plan for plan in PLANS if plan.name == name), None)
    if found is None:
        raise BadAgenda(f"{name}: the plans are {', '.join(plan.name for plan in PLANS)}")
    return found


def plan_page(plan: Plan) -> str:
    """Return the page of a plan: what to know beforehand, and its timetable."""
    path = course_folder() / "docs" / "teaching" / "notes" / f"{plan.name}.md"
    before = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    agenda = make_agenda(
        lessons_from(plan.lessons),
        days=plan.days,
        begin=plan.begin,
        until=plan.until,
        exercise_minutes=plan.exercise_minutes,
    )
    made = f"Made by `course agenda --plan {plan.name}`, which is `{plan.command}`; `--date` adds dates."
    return "\n\n".join(filter(None, [f"# {plan.title}", before, made, agenda_markdown(agenda, pages=True)]))


MADE = "<!-- Made by `make teaching`: change docs/teaching/notes, the lesson or its predictions, and make it again. -->"


def pages() -> dict[str, str]:
    """Return all generated pages by file name."""
    made = {f"{lesson.name}.md": lesson_page(lesson) for lesson in outlines().values()}
    return {name: f"{MADE}\n{text}" for name, text in (made | {f"{p.name}.md": plan_page(p) for p in PLANS}).items()}


def lesson_page(lesson: Outline) -> str:
    """Return the instructor's page of a lesson: section by section, then the exercises."""
    notes = read_notes(lesson.number)
    blocks = [
        f"# {lesson.title}",
        f"{lesson.minutes} minutes. [The lesson](../../notebooks/{lesson.name}.ipynb) · "
        f"[its exercises](../../exercises/{lesson.name}.ipynb) · slides: `course slides {lesson.number}`",
        notes.get(OPENING, ""),
    ]
    blocks += ["\n\n".join(_section(section, notes.get(section.heading, ""))) for section in lesson.sections]
    asked = sorted((each for each in exercises().values() if each.lesson == lesson.number), key=lambda e: e.number)
    if asked:
        blocks += ["## The exercises", *("\n\n".join(_exercise(exercise)) for exercise in asked)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def speaker_notes(lesson: Outline) -> dict[str, str]:
    """Return the speaker's notes by section heading: the notes, and the answer to each prediction."""
    notes = read_notes(lesson.number)
    beside = {
        section.heading: list(_section(section, notes.get(section.heading, "")))[2:] for section in lesson.sections
    }
    return {heading: "\n\n".join(blocks) for heading, blocks in beside.items()} | {lesson.title: notes.get(OPENING, "")}


def _section(section: Section, note: str) -> Iterator[str]:
    yield f"## {section.heading}"
    yield f"*{section.minutes} minute{'s' if section.minutes != 1 else ''}*"
    if note:
        yield note
    for number in section.asked:
        yield prediction_block(find_prediction(number))


def prediction_block(prediction: Prediction) -> str:
    """Return a prediction with its answer, and the misconception behind each wrong choice."""
    lines = [f"> **Predict {prediction.number}.** {prediction.question}", ">"]
    for letter, choice in zip(LETTERS, prediction.choices, strict=False):
        said = prediction.with_unit(choice.says) if prediction.typed else f"{letter}) {choice.says}"
        verdict = f"**{said}** is right." if choice.is_right else f"{said}: believes *{choice.believes}*."
        lines.append(f"> - {verdict} {choice.why}".rstrip())
    return "\n".join(lines)


def _exercise(exercise: Exercise) -> Iterator[str]:
    parts = ", ".join(f"{part} ({points})" for part, points in exercise.parts.items())
    yield f"### {exercise.number} {exercise.title}"
    yield (
        f"*{exercise.level}, {exercise.minutes} minutes, {exercise.points} points: {parts}.* "
        f"Explained in {exercise.where_to_read}."
    )
    mistakes = list(dict.fromkeys((*map(idea, exercise.symptoms), *exercise.errors.values())))
    if mistakes:
        yield "Common mistakes, as `check` names them:\n\n" + "\n".join(f"- {text}" for text in mistakes)


def main() -> None:
    """Write the pages to docs/teaching."""
    for name, text in pages().items():
        (course_folder() / "docs" / "teaching" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
