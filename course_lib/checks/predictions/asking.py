"""`predict` asks before a run, `reveal` says after it what was said, what came out, and what the wrong one believes.

Nothing waits for an answer: everything runs without one, and whoever does not want to be asked runs the next cell.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from course_lib.checks import progress_file
from course_lib.checks.predictions import find_prediction, wording
from course_lib.checks.predictions.prediction import Prediction
from course_lib.checks.showing import in_notebook, show
from course_lib.events import publish


def predict(number: str, answer: Any = None) -> None:
    """Ask what the run below will show. `predict("06.1", 22)` or `predict("06.2", "b")` answers without a mouse."""
    prediction = find_prediction(number)
    if answer is not None:
        said = prediction.answer_of(answer)
        box = wording.question_box(prediction, _keep(prediction, said))
        show(box, f"{wording.question_text(prediction)}\n{wording.said_text(prediction, said)}")
    elif in_notebook():
        from course_lib.checks.predictions.controls import ask

        ask(prediction, partial(_keep, prediction), wording.call_of(prediction))
    else:
        print(f"{wording.question_text(prediction)}\nAnswer with {wording.call_of(prediction)}, or go on without.")


def reveal(number: str, came_out: Any) -> None:
    """Say what came out of the run, beside what was predicted, and remember whether it was right."""
    prediction = find_prediction(number)
    said, came = _said(prediction), prediction.choice_for(came_out)
    right = said is not None and came is not None and prediction.choice_of(said) is came
    if in_notebook():
        from course_lib.checks.predictions.controls import put_away

        put_away(number)
    if said is None:
        progress_file.keep_prediction(number, skipped=True)
    else:
        progress_file.keep_prediction(number, said=said, right=right)
    publish("revealed", number=number, said=said, right=right)
    show(wording.result_box(prediction, said, came_out), wording.result_text(prediction, said, came_out))


def _keep(prediction: Prediction, said: Any) -> str:
    """Remember what was said; returns what stands below the question then."""
    progress_file.keep_prediction(prediction.number, said=said)
    publish("predicted", number=prediction.number, said=said)
    return wording.said_html(prediction, said)


def _said(prediction: Prediction) -> Any:
    """What the learner has said; the file is theirs, and may say anything."""
    try:
        return prediction.answer_of(progress_file.prediction_of(progress_file.read(), prediction.number)["said"])
    except (KeyError, ValueError):
        return None
