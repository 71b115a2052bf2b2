"""Show the class's question in a cell, for notebooks outside `course lab`, which shows it at the top."""

from __future__ import annotations

from functools import partial
from typing import Any

from course_lib.checks import wording
from course_lib.checks.asking import offer
from course_lib.checks.catalog import find_prediction
from course_lib.checks.prediction import LETTERS, Prediction
from course_lib.checks.showing import box, in_notebook, marked, show
from course_lib.classroom.learner import membership, news, tell

NO_CLASS = "You are not in a class: join one with join_class(address, code), from course_lib."
NOT_REACHED = "Nothing has been heard from the class yet: run this again."
NOTHING_ASKED = "There is no question for the class right now."
CLOSED = "This question is closed: wait for the class's answers, and run this again."


def show_question(answer: Any = None) -> None:
    """Show the current question, or why there is none; implements `class_question`."""
    state = news().get("state")
    asked = state.get("asked") if state else None
    if membership() is None:
        _say(NO_CLASS)
    elif asked is None:
        _say(NOTHING_ASKED if state else NOT_REACHED)
    elif asked["revealed"]:
        show(_outcome_box(asked), _outcome_text(asked))
    elif not asked["open"]:
        _say(CLOSED)
    else:
        _ask(find_prediction(asked["number"]), asked, answer)


def _ask(prediction: Prediction, asked: dict[str, Any], answer: Any) -> None:
    keep, call = partial(_keep, prediction, asked["asked"]), f"class_question({10 if prediction.typed else 'a'!r})"
    if answer is not None:
        said = prediction.answer_of(answer)
        below = keep(said)
        text = f"{wording.question_text(prediction)}\nYou said: {prediction.told(said)}. It goes to the class."
        show(wording.question_box(prediction, below), text)
    elif in_notebook():
        offer(prediction, keep, call)
    else:
        print(f"{wording.question_text(prediction)}\nAnswer with {call}.")


def _keep(prediction: Prediction, asked: str, said: Any) -> str:
    tell("answered", asked=asked, said=said)
    return f"<strong>You said</strong>: {marked(prediction.told(said))}. It goes to the class."


def _outcome(asked: dict[str, Any]) -> list[tuple[str, int, str]]:
    """Return (text, count, misconception or "right") for each choice."""
    revealed, rows = asked["revealed"], []
    for place, says in enumerate(asked["choices"]):
        words = f"{says} {asked['unit']}".rstrip() if asked["typed"] else f"{LETTERS[place]}) {says}"
        right = place == revealed["right"]
        rows.append((words, revealed["counts"][place], "right" if right else revealed["believes"][place]))
    return rows + ([("another number", revealed["other"], "")] if revealed["other"] else [])


def _outcome_text(asked: dict[str, Any]) -> str:
    lines = [f"The class was asked {asked['number']}: {asked['question']}"]
    lines += [f"  {count:>4}  {says}{f' ({about})' if about else ''}" for says, count, about in _outcome(asked)]
    return "\n".join(lines)


def _outcome_box(asked: dict[str, Any]) -> str:
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("answer", "learners", "misconception"))
    rows = "".join(
        f'<tr><th scope="row">{marked(says)}</th><td class="course-number">{count}</td><td>{marked(about)}</td></tr>'
        for says, count, about in _outcome(asked)
    )
    body = f"<p>{marked(asked['question'])}</p><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return box("neutral", f"The class was asked {asked['number']}", body, f"Answers of the class to {asked['number']}")


def _say(text: str) -> None:
    show(box("neutral", "The class", f"<p>{text}</p>", "The class"), text)
