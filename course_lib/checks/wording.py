"""The texts of a prediction: the question, and after the run the answer, the result and the misconception.

Each comes in two forms: plain text, and the HTML of a box.
"""

from __future__ import annotations

from typing import Any

from course_lib.checks.prediction import LETTERS, Choice, Prediction
from course_lib.checks.showing import box, marked


def question_text(prediction: Prediction) -> str:
    """Return the question and its choices as text."""
    lines = [f"Predict {prediction.number}: {prediction.question}"]
    if not prediction.typed:
        lines += [f"  {letter}) {choice.says}" for letter, choice in zip(LETTERS, prediction.choices, strict=False)]
    return "\n".join(lines)


def question_box(prediction: Prediction, below: str) -> str:
    """Return the question and its choices as a box, with a line of HTML below them."""
    body = f"<p>{marked(prediction.question)}</p>"
    if not prediction.typed:
        items = [
            f"<li>{letter}) {marked(choice.says)}</li>"
            for letter, choice in zip(LETTERS, prediction.choices, strict=False)
        ]
        body += f'<ul class="course-plain">{"".join(items)}</ul>'
    head = f"Predict {prediction.number}"
    return box("neutral", head, f"{body}<p>{below}</p>", f"Prediction {prediction.number}")


def call_of(prediction: Prediction) -> str:
    """Return an example of a call that answers the question, though not with the right answer."""
    return f"predict({prediction.number!r}, {10 if prediction.typed else 'a'!r})"


def said_text(prediction: Prediction, said: Any) -> str:
    return f"You said: {prediction.told(said)}. Now run it."


def said_html(prediction: Prediction, said: Any) -> str:
    return f"<strong>You said</strong>: {marked(prediction.told(said))}. Now run it."


def result_text(prediction: Prediction, said: Any, came_out: Any) -> str:
    """Return the result and, if there was one, the answer."""
    came, chosen = prediction.choice_for(came_out), _chosen(prediction, said)
    lines = [f"Prediction {prediction.number}, the result: {_came(prediction, came, came_out)}"]
    if said is not None:
        lines.append(f"You said: {prediction.told(said)}")
        if chosen and chosen is not came and chosen.believes:
            lines.append(f"The idea behind that: {chosen.believes}. {chosen.why}")
    return "\n".join(lines)


def result_box(prediction: Prediction, said: Any, came_out: Any) -> str:
    """Return the result and the answer as a box, with the misconceptions behind the other choices folded."""
    came, chosen = prediction.choice_for(came_out), _chosen(prediction, said)
    right = came is not None and chosen is came
    kind = "neutral" if said is None else "right" if right else "wrong"
    verdict = "" if said is None else ": ✓ as you said" if right else ": ✗ not as you said"
    why = f" {marked(came.why)}" if came else ""
    body = f"<p><strong>Result</strong>: {marked(_came(prediction, came, came_out))}.{why}</p>"
    if said is not None and not right:
        body += f"<p><strong>You said</strong>: {marked(prediction.told(said))}.</p>"
        if chosen and chosen.believes:
            believes = f"<em>{marked(chosen.believes)}.</em> {marked(chosen.why)}"
            body += f"<p><strong>The idea behind that</strong>: {believes}</p>"
    others = [choice for choice in prediction.choices if choice.believes and choice is not chosen]
    body += _others(prediction, others)
    head = f"Prediction {prediction.number}{verdict}"
    return box(kind, head, body, f"Result of prediction {prediction.number}")


def _chosen(prediction: Prediction, said: Any) -> Choice | None:
    return None if said is None else prediction.choice_of(said)


def _came(prediction: Prediction, came: Choice | None, came_out: Any) -> str:
    """Return the result in the words of the choice it supports, or the value itself."""
    return prediction.with_unit(came.says if came else str(came_out))


def _others(prediction: Prediction, choices: list[Choice]) -> str:
    if not choices:
        return ""
    items = [
        f"<li>{marked(prediction.with_unit(each.says))}: <em>{marked(each.believes)}.</em> {marked(each.why)}</li>"
        for each in choices
    ]
    return f"<details><summary>The ideas behind the other answers</summary><ul>{''.join(items)}</ul></details>"
