"""Predictions: what is asked, remembered and said afterwards; and each truth is what the lesson's own run gives."""

from __future__ import annotations

import json

import pytest

from course_lib.checks.asking import predict, reveal
from course_lib.checks.catalog import LESSONS, predictions
from course_lib.checks.prediction import LETTERS, Between, fits, read_predictions
from course_lib.checks.progress_file import read
from course_lib.checks.showing import marked
from course_lib.checks.wording import result_box
from course_lib.runtime.course_files import read as read_notebook
from course_lib.runtime.course_files import source
from tests.checks.class_of import ROOT
from tests.conftest import Kernel

pytestmark = pytest.mark.usefixtures("progress_file")


def cells_of(lesson: str) -> list[str]:
    """The code of a lesson, without what only draws, and without cells for live ranks, which only IPython can run."""
    notebook = read_notebook(ROOT / "notebooks" / f"{LESSONS[lesson].name}.ipynb")
    found = [source(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [cell for cell in found if not cell.startswith("%")]


def place_of(cells: list[str], call: str) -> int:
    (place,) = (place for place, cell in enumerate(cells) if call in cell)
    return place


@pytest.mark.parametrize("prediction", predictions().values(), ids=predictions())
def test_a_lesson_has_stored_that_the_truth_came_out(prediction):
    """And nbval compares what is stored with what the lesson's own run gives."""
    notebook = read_notebook(ROOT / "notebooks" / f"{LESSONS[prediction.lesson].name}.ipynb")
    (cell,) = (each for each in notebook["cells"] if f'reveal("{prediction.number}"' in source(each))
    (output,) = cell["outputs"]
    came = prediction.with_unit(prediction.right.says)
    assert "".join(output["data"]["text/plain"]) == f"Prediction {prediction.number}, the result: {came}"


def test_every_lesson_asks_three_to_six_and_reveals_each_below_its_run():
    for number in [lesson for lesson in LESSONS if lesson != "11"]:
        cells, ours = cells_of(number), [each for each in predictions() if each[:2] == number]
        assert 3 <= len(ours) <= 6
        asked = [place_of(cells, f'predict("{each}")') for each in ours]
        revealed = [place_of(cells, f'reveal("{each}"') for each in ours]
        assert asked == sorted(asked)
        assert all(before + 1 < after for before, after in zip(asked, revealed, strict=True)), number
        assert sum(cell.startswith("predict(") for cell in cells) == len(ours)


def test_one_of_a_unit_is_singular():
    asked = predictions()
    assert [asked["09.6"].told(number) for number in (0, 1, 3)] == ["0 updates", "1 update", "3 updates"]
    assert asked["09.2"].told(0.5) == "0.5 times"
    assert asked["04.2"].told(1) == "1 times as much"


@pytest.mark.parametrize("prediction", predictions().values(), ids=predictions())
def test_one_choice_is_right_and_every_other_one_names_what_it_believes(prediction):
    assert sum(choice.is_right for choice in prediction.choices) == 1
    for choice in prediction.choices:
        assert choice.why.endswith((".", ")")), choice
        assert prediction.choice_of(prediction.answer_of(_answer(prediction, choice))) is choice
        if choice is not prediction.right:
            assert choice.believes
            assert not choice.believes.endswith(".")
            assert not fits(prediction.right.value, _example(choice.value), prediction.tolerance)
    assert len({choice.says for choice in prediction.choices}) == len(prediction.choices)


def _answer(prediction, choice):
    return choice.value if prediction.typed else "abcdefgh"[prediction.choices.index(choice)]


def _example(value):
    if isinstance(value, Between):
        return (value.low + value.high) / 2
    return [_example(each) for each in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("prediction", predictions().values(), ids=lambda prediction: prediction.number)
def test_whatever_is_said_a_box_names_what_every_wrong_answer_believes(prediction):
    said = [None, *(choice.value if prediction.typed else LETTERS[n] for n, choice in enumerate(prediction.choices))]
    for answer in said:
        box = result_box(prediction, answer, prediction.right.value)
        assert all(marked(choice.believes) in box for choice in prediction.choices)


QUESTION = """
[[question]]
number = "06.1"
question = '''
Which
one?'''
[[question.choice]]
says = "This one"
value = [{ from = 1, to = 2 }, 3]
why = "It is so."
[[question.choice]]
says = "That one"
value = 2
believes = "Any will do"
why = "It will not."
"""


def test_a_question_is_read_from_its_file(tmp_path):
    (tmp_path / "predictions.toml").write_text(QUESTION)
    (prediction,) = read_predictions(tmp_path / "predictions.toml")
    assert prediction.question == "Which one?"
    assert prediction.right.value == [Between(1, 2), 3]
    assert prediction.choices[1].believes == "Any will do"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[[question]]", "[[question", "line 2"),
        ('number = "06.1"', "", "question 1, number: it is missing"),
        ('says = "That one"', "", r"question 1 \(06.1\), choice 2, says: it is missing"),
        ("value = [", "# [", "choice 1, value: it is missing"),
        ("from = 1, ", "", "choice 1, value, from: it is missing"),
        ('believes = "Any will do"', "value2 = 2", "choice 2, value2: there is no such key"),
        ('why = "It is so."', 'why = "No."\nbelieves = "So"', "believes: every choice needs it except one"),
    ],
)
def test_a_fault_in_a_file_of_questions_is_named_with_its_key(tmp_path, old, new, message):
    path = tmp_path / "predictions.toml"
    path.write_text(QUESTION.replace(old, new, 1))
    with pytest.raises(ValueError, match=f"predictions.toml: .*{message}"):
        read_predictions(path)


def test_the_right_choice_is_not_always_at_the_same_place():
    places = [each.choices.index(each.right) for each in predictions().values() if not each.typed]
    assert max(map(places.count, places)) < 0.6 * len(places)


def test_a_prediction_is_asked_answered_remembered_and_revealed(capsys, progress_file):
    predict("06.2")
    asked = capsys.readouterr().out
    assert "how many micro-batches does stage 0 hold" in asked
    assert "  b) 22 units; 4" in asked
    assert "predict('06.2', 'a')" in asked
    predict("06.2", "D")
    assert json.loads(progress_file.read_text())["predictions"]["06.2"] == {"said": "d"}
    capsys.readouterr()
    reveal("06.2", (22.0, 4))
    told = capsys.readouterr().out
    assert "the result: 22 units; 4" in told
    assert "You said: d) 22 units; 1" in told
    assert "The idea behind that: One forward, one backward: one in flight. Stage 0 must fill" in told
    assert read()["predictions"]["06.2"] == {"said": "d", "right": False}


def test_a_number_that_is_known_to_be_wrong_is_told_what_it_believes(capsys):
    predict("06.1", 16)
    reveal("06.1", 22.0)
    assert "The idea behind that: All stages are always busy" in capsys.readouterr().out
    predict("06.1", "22")
    reveal("06.1", 22.0)
    assert read()["predictions"]["06.1"] == {"said": 22.0, "right": True}
    predict("06.1", 17.5)
    reveal("06.1", 22.0)
    assert "You said: 17.5 units" in capsys.readouterr().out
    assert read()["predictions"]["06.1"] == {"said": 17.5, "right": False}


def test_nothing_waits_for_a_prediction(capsys):
    reveal("06.1", 22.0)
    assert capsys.readouterr().out == "Prediction 06.1, the result: 22 units\n"
    assert read()["predictions"]["06.1"] == {"skipped": True}


def test_a_run_that_gives_something_else_says_what(capsys):
    predict("06.1", 22)
    reveal("06.1", 23)
    assert "the result: 23 units" in capsys.readouterr().out
    assert read()["predictions"]["06.1"]["right"] is False


@pytest.mark.parametrize(
    ("number", "answer"), [("06.2", "e"), ("06.2", 2), ("06.1", "many"), ("06.1", "1/0"), ("06.1", float("nan"))]
)
def test_an_answer_that_is_none_gets_a_sentence_and_is_not_kept(number, answer):
    with pytest.raises(ValueError, match=f"answer {number} with"):
        predict(number, answer)
    assert read() == {}


def test_a_fraction_is_a_number():
    predict("00.3", "3/2")
    assert read()["predictions"]["00.3"] == {"said": 1.5}


@pytest.mark.parametrize("number", ["6.1", "06.9", None, 6.1])
def test_a_number_that_is_none_gets_a_sentence(number):
    with pytest.raises(ValueError, match=r"the predictions are numbered like 06\.1: give one of 00\.1"):
        predict(number)


@pytest.mark.parametrize(
    "content", ['{"predictions": 3}', '{"predictions": {"06.1": 5}}', '{"predictions": {"06.1": {"said": []}}}']
)
def test_a_torn_file_is_an_answer_that_was_not_given(progress_file, content, capsys):
    progress_file.write_text(content)
    reveal("06.1", 22.0)
    assert "You said" not in capsys.readouterr().out


def test_exercises_and_predictions_share_the_file(progress_file):
    progress_file.write_text('{"02.1": {"tries": 2, "points": 3, "hints": 0}}')
    predict("06.1", 22)
    assert read() == {"02.1": {"tries": 2, "points": 3, "hints": 0}, "predictions": {"06.1": {"said": 22.0}}}


@pytest.mark.slow
def test_in_a_notebook_the_buttons_commit_and_go_away(kernel: Kernel, progress_file):
    kernel.run(f"import os; os.environ['COURSE_LIB_PROGRESS'] = {str(progress_file)!r}")
    cell = kernel.run("from course_lib.checks.asking import predict, reveal\npredict('06.2')")
    assert cell.error is None, cell.message
    assert "how many micro-batches does stage 0 hold" in cell.html
    live = "len(get_ipython().meta['course_predictions'])"
    assert kernel.run(live).result == "1"
    clicked = kernel.run("get_ipython().meta['course_predictions']['06.2'].row.children[1].click()")
    assert clicked.error is None, clicked.message
    assert kernel.run(live).result == "0"
    assert json.loads(progress_file.read_text())["predictions"]["06.2"] == {"said": "b"}
    revealed = kernel.run("reveal('06.2', (22, 4))")
    assert "as you said" in revealed.html
    kernel.run("predict('06.1')\nfield, _, done = get_ipython().meta['course_predictions']['06.1'].row.children")
    kernel.run("field.value = 'many'\ndone.click()")
    assert kernel.run(live).result == "1"
    kernel.run("reveal('06.1', 22)")
    assert kernel.run(live).result == "0", "too late: the controls are put away"
    again = kernel.run("predict('06.2')")
    assert "You said" in again.html
    assert kernel.run(live).result == "0", "what was answered is not asked again"
