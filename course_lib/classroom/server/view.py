"""Views of the tally: the instructor's snapshot, and the state for a learner."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any

from course_lib.checks.catalog import LESSONS
from course_lib.checks.prediction import Prediction
from course_lib.classroom.content import Content
from course_lib.classroom.server.tally import Answers, Asking, Question, Tally, Trials

MOST_MISTAKES = 12  # shown per exercise, most frequent first
MANY_TRIES = 3  # failed checks after which learners may need help even if they don't ask
MOST_QUESTIONS = 20  # shown to learners, most wanted first

Naming = Callable[[str], str]  # learner -> name


def snapshot(tally: Tally, content: Content, name: Naming, here: Collection[str] = ()) -> dict[str, Any]:
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
        "quiet": [
            {"name": name(learner), "number": number, "tries": tally.exercises[number].trying[learner]}
            for learner, number in tally.working_on.items()
            if learner in here and learner not in tally.hands and tally.exercises[number].trying[learner] >= MANY_TRIES
        ],
        "missing": [name(learner) for learner in here if tally.shown and learner not in tally.shown.answers.said],
        "slower": len(tally.slower),
        "done": len(tally.done.intersection(here)),
        "wonderings": [
            {**_wondering(each, ""), "name": name(each.learner), "since": each.since, "lesson": each.lesson}
            for each in tally.board
        ],
        "call": vars(tally.call) if tally.call else None,
        "stage": _stage(tally),
    }


def _wondering(question: Question, learner: str) -> dict[str, Any]:
    votes = {"votes": len(question.votes), "voted": learner in question.votes, "own": learner == question.learner}
    return {"question": question.question, "text": question.text, **votes}


def _stage(tally: Tally) -> dict[str, Any] | None:
    if "question" in tally.stage:
        return {"text": tally.questions[tally.stage["question"]].text}
    return {"cell": _highlighted(tally.stage["source"])} if tally.stage else None


@lru_cache(maxsize=4)
def _highlighted(source: str) -> list[tuple[str, str]]:
    """Return a cell as (kind, text) pieces. The page colors the kinds; the text stays text."""
    from pygments.lexers import PythonLexer
    from pygments.token import STANDARD_TYPES

    return [(STANDARD_TYPES.get(kind, "")[:1], text) for kind, text in PythonLexer().get_tokens(source)]


def learner_state(tally: Tally, content: Content, learner: str, title: str) -> dict[str, Any]:
    """Return the state for one learner, without anything that gives away the answer before it is revealed."""
    asking = tally.shown
    line = list(tally.hands).index(learner) + 1 if learner in tally.hands else 0
    return {
        "class": title,
        "asked": None if asking is None else _asked(asking, content.questions[asking.number], learner, tally),
        "stuck": line > 0,
        "line": line,
        "done": learner in tally.done,
        "slower": learner in tally.slower,
        "call": _called(tally),
        "wonderings": [_wondering(each, learner) for each in tally.board[:MOST_QUESTIONS]],
    }


def _called(tally: Tally) -> dict[str, Any] | None:
    call = tally.call
    if call is None:
        return None
    return {"call": call.call, "lesson": call.lesson, "name": LESSONS[call.lesson].name, "section": call.section}


def _asked(asking: Asking, question: Prediction, learner: str, tally: Tally) -> dict[str, Any]:
    tells = asking.revealed or not question.typed  # the choices' numbers would give the answer away
    return {
        "asked": asking.asked,
        "number": question.number,
        "question": question.question,
        "choices": [choice.says for choice in question.choices] if tells else [],
        "typed": question.typed,
        "unit": question.unit,
        "round": asking.round,
        "open": asking.open,
        "discussed": asking.discussed,
        "left": max(0.0, asking.ends - time.time()) if asking.ends else None,
        "said": asking.answers.said.get(learner),
        "revealed": _revealed(asking, question, tally) if asking.revealed else None,
    }


def _revealed(asking: Asking, question: Prediction, tally: Tally) -> dict[str, Any]:
    before = tally.answers.get((question.number, "before")) if asking.round == "after" else None
    return {
        **_counts(asking.answers, question),
        "before": _counts(before, question) if before is not None else None,
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
            "discussed": asking.discussed,
            "revealed": asking.revealed,
            "ends": asking.ends,
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
