"""Views of the tally: the instructor's snapshot, and the state for a learner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course_lib.checks.catalog import LESSONS
from course_lib.checks.prediction import Prediction
from course_lib.classroom.content import Content
from course_lib.classroom.server.tally import Answers, Asking, Tally, Trials

MOST_MISTAKES = 12  # shown per exercise, most frequent first

Naming = Callable[[str], str]  # learner -> name


def snapshot(tally: Tally, content: Content, name: Naming) -> dict[str, Any]:
    """Return the counts for the instructor's page."""
    return {
        "questions": [_question(question, tally) for question in content.questions.values()],
        "exercises": [
            {"number": number, "title": exercise.title, "points": exercise.points, **_trials(tally, number, name)}
            for number, exercise in content.exercises.items()
        ],
        "lessons": [
            {
                "number": lesson,
                "title": LESSONS[lesson].title,
                "sections": [_section(tally, lesson, heading) for heading in headings],
            }
            for lesson, headings in content.sections.items()
        ],
        "hands": [{**vars(hand), "name": name(hand.learner)} for hand in tally.hands.values()],
        "slower": len(tally.slower),
    }


def learner_state(tally: Tally, content: Content, learner: str, title: str) -> dict[str, Any]:
    """Return the state for one learner, without anything that gives away the answer before it is revealed."""
    asking = tally.shown
    line = list(tally.hands).index(learner) + 1 if learner in tally.hands else 0
    return {
        "class": title,
        "asked": None if asking is None else _asked(asking, content.questions[asking.number], learner),
        "stuck": line > 0,
        "line": line,
    }


def _asked(asking: Asking, question: Prediction, learner: str) -> dict[str, Any]:
    tells = asking.revealed or not question.typed  # the known numbers would give the answer away
    return {
        "asked": asking.asked,
        "number": question.number,
        "question": question.question,
        "choices": [choice.says for choice in question.choices] if tells else [],
        "typed": question.typed,
        "unit": question.unit,
        "round": asking.round,
        "open": asking.open,
        "said": asking.answers.said.get(learner),
        "revealed": _revealed(asking, question) if asking.revealed else None,
    }


def _revealed(asking: Asking, question: Prediction) -> dict[str, Any]:
    return {
        **_counts(asking.answers, question),
        "right": question.choices.index(question.right),
        "believes": [choice.believes for choice in question.choices],
        "why": [choice.why for choice in question.choices],
    }


def _counts(answers: Answers | None, question: Prediction) -> dict[str, Any]:
    counts = answers.counts if answers is not None else {}
    return {"counts": [counts.get(place, 0) for place in range(len(question.choices))], "other": counts.get(-1, 0)}


def _question(question: Prediction, tally: Tally) -> dict[str, Any]:
    asking = tally.latest(question.number)
    return {
        "number": question.number,
        "question": question.question,
        "typed": question.typed,
        "unit": question.unit,
        "choices": [
            {"says": choice.says, "believes": choice.believes, "why": choice.why, "right": choice.is_right}
            for choice in question.choices
        ],
        "before": _counts(tally.answers.get((question.number, "before")), question),
        "after": _counts(tally.answers.get((question.number, "after")), question),
        "asked": None
        if asking is None
        else {
            "asked": asking.asked,
            "round": asking.round,
            "open": asking.open,
            "revealed": asking.revealed,
            "shown": asking is tally.shown,
            "answers": len(asking.answers.said),
        },
    }


def _trials(tally: Tally, number: str, name: Naming) -> dict[str, Any]:
    trials = tally.exercises.get(number) or Trials()
    often = sorted(trials.mistakes.items(), key=lambda made: -len(made[1]))[:MOST_MISTAKES]
    return {
        "passed": [name(learner) for learner in trials.passed],
        "trying": [name(learner) for learner in trials.trying],
        "mistakes": [{"part": part, "mistake": mistake, "count": len(who)} for (part, mistake), who in often],
    }


def _section(tally: Tally, lesson: str, heading: str) -> dict[str, Any]:
    place = (lesson, heading)
    return {"heading": heading, "here": tally.here.get(place, 0), "been": len(tally.been.get(place, ()))}
