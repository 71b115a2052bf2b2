"""`predict` asks before a run; `reveal` then shows your answer, the result, and the misconception if you were wrong.

Nothing waits for an answer: to skip a question, run the next cell. The question is a separate output and stays in
the notebook. The buttons below it disappear once you click one, or once the run has revealed the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from course_lib.checks import progress_file, wording
from course_lib.checks.catalog import find_prediction
from course_lib.checks.prediction import LETTERS, Prediction
from course_lib.checks.showing import Controls, in_notebook, show
from course_lib.runtime.events import publish


def predict(number: str, answer: Any = None) -> None:
    """Ask what the run below will show. `predict("06.1", 22)` or `predict("06.2", "b")` answers from code."""
    prediction = find_prediction(number)
    if answer is not None:
        said = prediction.answer_of(answer)
        html = wording.question_box(prediction, _keep(prediction, said))
        show(html, f"{wording.question_text(prediction)}\n{wording.said_text(prediction, said)}")
    elif in_notebook() and (said := _said(prediction)) is not None:  # already answered, maybe in another kernel
        again = f"{wording.said_html(prediction, said)} To answer again: <code>{wording.call_of(prediction)}</code>."
        html = wording.question_box(prediction, again)
        show(html, f"{wording.question_text(prediction)}\n{wording.said_text(prediction, said)}")
    elif in_notebook():
        offer(prediction, partial(_keep, prediction), wording.call_of(prediction))
    else:
        print(f"{wording.question_text(prediction)}\nAnswer with {wording.call_of(prediction)}, or skip it.")


def reveal(number: str, came_out: Any) -> None:
    """Show the result of the run next to the prediction, and record whether the prediction was right."""
    prediction = find_prediction(number)
    said, came = _said(prediction), prediction.choice_for(came_out)
    right = said is not None and came is not None and prediction.choice_of(said) is came
    if in_notebook():
        _put_away(number)
    if said is None:
        progress_file.keep_prediction(number, skipped=True)
    else:
        progress_file.keep_prediction(number, said=said, right=right)
    publish("revealed", number=number, said=said, right=right)
    show(wording.result_box(prediction, said, came_out), wording.result_text(prediction, said, came_out))


def _keep(prediction: Prediction, said: Any) -> str:
    """Record an answer and return the HTML to show below the question."""
    progress_file.keep_prediction(prediction.number, said=said)
    publish("predicted", number=prediction.number, said=said)
    return wording.said_html(prediction, said)


def _said(prediction: Prediction) -> Any:
    """Return the recorded answer, or None if there is no valid one: learners can edit the progress file."""
    try:
        return prediction.answer_of(progress_file.prediction_of(progress_file.read(), prediction.number)["said"])
    except (KeyError, ValueError):
        return None


def offer(prediction: Prediction, keep: Callable[[Any], str], call: str) -> None:
    """Show the question with the controls to answer it below; `call` is the equivalent call, shown as a hint.

    `keep` receives the answer and returns the HTML that replaces the line below the question.
    """
    from IPython.display import display

    _put_away(prediction.number)
    below = f"In a live notebook, answer below or with <code>{call}</code>; or just go on."
    question = display(_bundle(prediction, below), raw=True, display_id=True)

    def commit(answer: Any) -> None:
        below = keep(answer)
        _put_away(prediction.number)
        if question is not None:
            question.update(_bundle(prediction, below), raw=True)

    try:
        widgets = _number_field(prediction, commit) if prediction.typed else _buttons(prediction, commit)
    except ImportError:  # ipywidgets is not installed
        return
    _on_the_page()[prediction.number] = Controls(*widgets)


def _put_away(number: str) -> None:
    """Remove the controls of a prediction from the page, if they are still there."""
    controls = _on_the_page().pop(number, None)
    if controls is not None:
        controls.put_away()


def _on_the_page() -> dict[str, Controls]:
    """Return the unused controls by prediction number. They live on the IPython shell, so they end with the session."""
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    return shell.meta.setdefault("course_predictions", {})


def _bundle(prediction: Prediction, below: str) -> dict[str, str]:
    return {
        "text/html": wording.question_box(prediction, below),
        "text/plain": wording.question_text(prediction),
    }


def _buttons(prediction: Prediction, commit: Callable[[Any], None]) -> list[Any]:
    """Return one button per choice, with its text. On the desk, they replace the choices in the question's box."""
    import ipywidgets

    buttons = []
    for letter, choice in zip(LETTERS, prediction.choices, strict=False):
        words = re.sub(r"[`*]", "", f"{letter}) {choice.says}")
        button = ipywidgets.Button(description=words, tooltip=words, layout={"width": "auto", "max_width": "100%"})
        button.add_class("course-choice")
        button.on_click(lambda _, letter=letter: commit(letter))
        buttons.append(button)
    return buttons


def _number_field(prediction: Prediction, commit: Callable[[Any], None]) -> list[Any]:
    """Return a number field, its unit, and a submit button. Enter submits, too."""
    import ipywidgets

    field = ipywidgets.Text(
        description="My answer", placeholder="a number", continuous_update=False, layout={"width": "16em"}
    )
    done = ipywidgets.Button(description="Submit", layout={"width": "auto"})
    done.add_class("course-say")
    reply = ipywidgets.Label(value=prediction.unit)
    entered: list[bool] = []

    def take(*_: Any) -> None:
        try:
            answer = prediction.answer_of(field.value)
        except ValueError:
            reply.value = "a number, please, such as 12, 1.5 or 3/2"
            return
        commit(answer)

    def hear(_: Any, message: dict[str, Any], __: Any) -> None:
        if message.get("event") == "submit":  # arrives before the new value does
            entered.append(True)

    field.on_msg(hear)
    field.observe(lambda _: take() if entered else None, "value")
    done.on_click(take)
    return [field, reply, done]
