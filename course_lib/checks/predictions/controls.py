"""The buttons of a prediction, in a notebook that has widgets. They go away when they have been used, or are too late.

The question is an output of its own, and stays: without widgets (GitHub, nbconvert) it is all there is to see. Nor is a
button left that nobody answers: what a notebook keeps of a widget is an error when it is opened again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course_lib.checks import progress_file
from course_lib.checks.predictions import wording
from course_lib.checks.predictions.prediction import LETTERS, Prediction

WIDGET = "application/vnd.jupyter.widget-view+json"


def ask(prediction: Prediction) -> None:
    """Show the question, and below it the controls to answer it with."""
    from IPython.display import display

    put_away(prediction.number)
    below = f"Answer below or with <code>{wording.call_of(prediction)}</code>, or go on without."
    question = display(_bundle(prediction, below), raw=True, display_id=True)

    def commit(answer: Any) -> None:
        progress_file.keep_prediction(prediction.number, said=answer)
        put_away(prediction.number)
        if question is not None:
            question.update(_bundle(prediction, wording.said_html(prediction, answer)), raw=True)

    try:
        controls = _number_field(prediction, commit) if prediction.typed else _buttons(prediction, commit)
    except ImportError:  # no widgets here
        return
    _on_the_page()[prediction.number] = controls
    display({WIDGET: {"version_major": 2, "version_minor": 0, "model_id": controls.model_id}}, raw=True)


def put_away(number: str) -> None:
    """Take the controls of a prediction off the page, if they are still there."""
    controls = _on_the_page().pop(number, None)
    if controls is not None:
        for each in (*controls.children, controls):
            each.close()


def _on_the_page() -> dict[str, Any]:
    """The controls that have not been used, by number: kept with the session, whose end is theirs."""
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    return shell.meta.setdefault("course_predictions", {})


def _bundle(prediction: Prediction, below: str) -> dict[str, str]:
    return {
        "text/html": wording.question_box(prediction, below),
        "text/plain": wording.question_text(prediction),
    }


def _buttons(prediction: Prediction, commit: Callable[[Any], None]) -> Any:
    """One for each choice."""
    import ipywidgets

    buttons = []
    for letter, choice in zip(LETTERS, prediction.choices, strict=False):
        button = ipywidgets.Button(description=letter, tooltip=f"{letter}) {choice.says}", layout={"width": "3.5em"})
        button.on_click(lambda _, letter=letter: commit(letter))
        buttons.append(button)
    return _row([ipywidgets.Label(value="I say"), *buttons])


def _number_field(prediction: Prediction, commit: Callable[[Any], None]) -> Any:
    """A field for a number; Enter or the button beside it says that this is it."""
    import ipywidgets

    field = ipywidgets.Text(description="I say", placeholder="a number", layout={"width": "16em"})
    done = ipywidgets.Button(description="That is my prediction", layout={"width": "auto"})
    reply = ipywidgets.Label(value=prediction.unit)

    def take() -> None:
        try:
            answer = prediction.answer_of(field.value)
        except ValueError:
            reply.value = "a number, please"
            return
        commit(answer)

    done.on_click(lambda _: take())
    field.on_msg(lambda _, content, __: take() if content.get("event") == "submit" else None)
    return _row([field, reply, done])


def _row(controls: list[Any]) -> Any:
    import ipywidgets

    return ipywidgets.HBox(controls, layout={"flex_flow": "row wrap", "align_items": "center"})
