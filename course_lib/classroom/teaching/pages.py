"""The pages of docs/teaching, made from the lessons, the predictions, the exercises' banks and the notes."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.checks import exercises
from course_lib.checks.catalog import find_prediction
from course_lib.checks.exercise import Exercise, idea
from course_lib.checks.prediction import LETTERS, Prediction
from course_lib.classroom.outline import Outline, Section, outlines
from course_lib.classroom.teaching.notes import OPENING, read_notes
from course_lib.classroom.teaching.plans import PLANS, plan_page

MADE = "<!-- Made by `make teaching`: change docs/teaching/notes, the lesson or its predictions, and make it again. -->"


def pages() -> dict[str, str]:
    """All pages that are made, by the name of their file."""
    made = {f"{lesson.name}.md": lesson_page(lesson) for lesson in outlines().values()}
    return {name: f"{MADE}\n{text}" for name, text in (made | {f"{p.name}.md": plan_page(p) for p in PLANS}).items()}


def lesson_page(lesson: Outline) -> str:
    """A lesson as an instructor holds it in the hand: section by section, then the exercises."""
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
    """What a speaker sees beside the slides, by heading: the notes, and the answer to each prediction."""
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
    """A prediction with its answer, and what each wrong choice believes."""
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
