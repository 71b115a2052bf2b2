"""The report of a class as CSV: a row per learner, and a row per choice of each question."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from course_lib.checks.prediction import LETTERS
from course_lib.classroom.report.history import History
from course_lib.classroom.server.tally import ROUNDS, Answers
from course_lib.grading.summary import harmless


def learners_table(history: History) -> str:
    """Return a row per learner: answers before and after, points per exercise, hands and last position."""
    answers = history.tally.answers
    asked = [key for number in history.course.questions for key in ((number, round_) for round_ in ROUNDS)]
    asked = [key for key in asked if key in answers]
    tried = [number for number in history.course.exercises if number in history.tally.exercises]
    heads = [*(f"{number} {round_}" for number, round_ in asked), *(f"{number} points" for number in tried)]
    rows = []
    for learner, name in history.names.items():
        marks = history.marks[learner]
        said = [answers[key].said.get(learner, "") for key in asked]
        points = [f"{marks.points[number]:g}" if number in marks.points else "" for number in tried]
        rows.append([name, *said, *points, marks.hands, *marks.last])
    return _csv(["learner", *heads, "hands", "last lesson", "last section"], rows)


def questions_table(history: History) -> str:
    """Return a row per choice: how many chose it before and after, and the misconception behind it."""
    rows = []
    for number, question in history.course.questions.items():
        rounds = [history.tally.answers.get((number, round_), Answers()) for round_ in ROUNDS]
        if not any(answers.said for answers in rounds):
            continue
        for place, choice in enumerate(question.choices):
            letter, counts = LETTERS[place] if not question.typed else "", [each.counts[place] for each in rounds]
            right = "yes" if choice.is_right else "no"
            rows.append([number, question.question, letter, choice.says, choice.believes, right, *counts])
        if question.typed:
            rows.append(
                [number, question.question, "", "another number", "", "no", *(each.counts[-1] for each in rounds)]
            )
    return _csv(["number", "question", "letter", "choice", "believes", "right", *ROUNDS], rows)


def _csv(heads: list[str], rows: Iterable[list[Any]]) -> str:
    """Format as CSV. Numbers stay numbers, and no text can be read as a formula."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(heads)
    writer.writerows([harmless(value) if isinstance(value, str) else value for value in row] for row in rows)
    return text.getvalue()
