"""The buttons of a prediction, in a notebook that has widgets. They go away when they have been used, or are too late.

The question is an output of its own, and stays: without widgets (GitHub, nbconvert) it is all there is to see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course_lib.checks.predictions import wording
from course_lib.checks.predictions.prediction import LETTERS, Prediction
from course_lib.checks.showing import Controls


def ask(prediction: Prediction, keep: Callable[[Any], str], call: str) -> None:
    """Show the question, and below it the controls to answer it with; `call` would do the same.

    `keep` is called with the answer, and returns the HTML that then stands below the question.
    """
    from IPython.display import display

    put_away(prediction.number)
    below = f"In a live notebook, answer below or with <code>{call}</code>; or just go on."
    question = display(_bundle(prediction, below), raw=True, display_id=True)

    def commit(answer: Any) -> None:
        below = keep(answer)
        put_away(prediction.number)
        if question is not None:
            question.update(_bundle(prediction, below), raw=True)

    try:
        widgets = _number_field(prediction, commit) if prediction.typed else _buttons(prediction, commit)
    except ImportError:  # no widgets here
        return
    _on_the_page()[prediction.number] = Controls(*widgets)


def put_away(number: str) -> None:
    """Take the controls of a prediction off the page, if they are still there."""
    controls = _on_the_page().pop(number, None)
    if controls is not None:
        controls.put_away()


def _on_the_page() -> dict[str, Controls]:
    """The controls that have not been used, by number: kept with the session, whose end is theirs."""
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    return shell.meta.setdefault("course_predictions", {})


def _bundle(prediction: Prediction, below: str) -> dict[str, str]:
    return {
        "text/html": wording.question_box(prediction, below),
        "text/plain": wording.question_text(prediction),
    }


def _buttons(prediction: Prediction, commit: Callable[[Any], None]) -> list[Any]:
    """One for each choice."""
    import ipywidgets

    buttons = []
    for letter, choice in zip(LETTERS, prediction.choices, strict=False):
        button = ipywidgets.Button(description=letter, tooltip=f"{letter}) {choice.says}", layout={"width": "3.5em"})
        button.on_click(lambda _, letter=letter: commit(letter))
        buttons.append(button)
    return [ipywidgets.Label(value="I say"), *buttons]


def _number_field(prediction: Prediction, commit: Callable[[Any], None]) -> list[Any]:
    """A field for a number; Enter, or the button beside it, says that this is it."""
    import ipywidgets

    field = ipywidgets.Text(
        description="I say", placeholder="a number", continuous_update=False, layout={"width": "16em"}
    )
    done = ipywidgets.Button(description="That is my prediction", layout={"width": "auto"})
    reply = ipywidgets.Label(value=prediction.unit)
    entered: list[bool] = []

    def take(*_: Any) -> None:
        try:
            answer = prediction.answer_of(field.value)
        except ValueError:
            reply.value = "a number, please"
            return
        commit(answer)

    def hear(_: Any, message: dict[str, Any], __: Any) -> None:
        if message.get("event") == "submit":  # which comes before what was typed
            entered.append(True)

    field.on_msg(hear)
    field.observe(lambda _: take() if entered else None, "value")
    done.on_click(take)
    return [field, reply, done]
