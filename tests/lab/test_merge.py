"""A newer notebook keeps what a learner wrote into the older one, and nothing of the learner's is ever lost."""

from __future__ import annotations

import copy
import random

import pytest

from course_lib.lab.merge import Merged, is_changed, laid_out, merge, only_answers, without_outputs
from course_lib.runtime.course_files import is_answer, source

STUB = "def f():\n    # YOUR CODE HERE\n    raise NotImplementedError()"


def text(words: str, name: str) -> dict:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": words}


def code(words: str, name: str, grade_id: str = "", output: str = "") -> dict:
    marks = {"nbgrader": {"grade_id": grade_id, "solution": grade_id.startswith("answer")}} if grade_id else {}
    outputs = [{"output_type": "stream", "name": "stdout", "text": output}] if output else []
    count = 1 if output else None
    return {
        **{"cell_type": "code", "id": name, "metadata": marks, "source": words},
        **{"outputs": outputs, "execution_count": count},
    }


def notebook(*cells: dict) -> dict:
    return {"cells": copy.deepcopy(list(cells)), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


OLD = notebook(
    text("# Exercises", "cell-00"),
    code("import torch", "cell-01"),
    text("## 02.1 Write f", "cell-02"),
    code(STUB, "cell-03", "answer-02-1"),
    code("check('02.1', f)", "cell-04", "check-02-1"),
    text("The end", "cell-05"),
)
# One cell more, so that all ids below it are others; and the task in other words.
NEW = notebook(
    text("# Exercises", "cell-00"),
    text("How to work with them", "cell-01"),
    code("import torch", "cell-02"),
    text("## 02.1 Write f, which returns 1", "cell-03"),
    code(STUB, "cell-04", "answer-02-1"),
    code("check('02.1', f)", "cell-05", "check-02-1"),
    text("The end", "cell-06"),
)


def written(change) -> dict:
    """The older notebook as a learner has changed it."""
    yours = copy.deepcopy(OLD)
    change(yours["cells"])
    return yours


def merged(yours: dict, ours: dict = NEW) -> Merged:
    made = merge(yours, laid_out(OLD), ours)
    ids = [cell["id"] for cell in made.notebook["cells"]]
    assert len(ids) == len(set(ids)), ids
    return made


def texts(made: Merged) -> list[str]:
    return [source(cell) for cell in made.notebook["cells"]]


def test_a_notebook_that_was_not_changed_becomes_the_new_one():
    made = merged(OLD)
    assert made == Merged(NEW, learner_cells=0, conflicts=0)


def test_an_answer_stays_and_the_text_around_it_is_renewed():
    made = merged(written(lambda cells: cells[3].update(source="def f():\n    return 1")))
    assert texts(made)[3:5] == ["## 02.1 Write f, which returns 1", "def f():\n    return 1"]
    assert (made.learner_cells, made.conflicts) == (1, 0)
    assert made.notebook["cells"][4]["metadata"] == NEW["cells"][4]["metadata"]


def test_an_answer_stays_even_if_its_stub_is_another_one_now():
    ours = copy.deepcopy(NEW)
    ours["cells"][4]["source"] = "def f(x):\n    raise NotImplementedError()"
    made = merged(written(lambda cells: cells[3].update(source="def f(): return 1")), ours)
    assert "def f(): return 1" in texts(made)
    assert (made.learner_cells, made.conflicts) == (1, 0)


def test_a_cell_of_the_learners_own_stays_behind_the_cell_that_it_was_behind():
    made = merged(written(lambda cells: cells.insert(3, code("my notes = 3", "e4a1"))))
    assert texts(made)[3:5] == ["## 02.1 Write f, which returns 1", "my notes = 3"]
    made = merged(written(lambda cells: cells.insert(0, text("Mine", "e4a1"))))
    assert texts(made)[0] == "Mine"


def test_a_cell_of_the_learners_own_makes_way_for_an_id_of_the_course():
    made = merged(written(lambda cells: cells.append(text("Mine", "cell-06"))))
    assert texts(made)[-2:] == ["The end", "Mine"]


def test_what_was_run_keeps_its_output_where_the_cell_is_the_same():
    made = merged(written(lambda cells: cells.__setitem__(1, code("import torch", "cell-01", output="ready"))))
    assert made.notebook["cells"][2]["outputs"][0]["text"] == "ready"
    assert made.learner_cells == 0


def test_a_cell_that_only_the_learner_has_changed_stays_changed():
    made = merged(written(lambda cells: cells[1].update(source="import torch, math")))
    assert texts(made)[2] == "import torch, math"
    assert (made.learner_cells, made.conflicts) == (1, 0)


def test_a_cell_that_both_have_changed_is_undecided():
    ours = copy.deepcopy(OLD)
    ours["cells"][1]["source"] = "import torch as t"
    made = merged(written(lambda cells: cells[1].update(source="import torch, math")), ours)
    assert texts(made)[1] == "import torch as t"
    assert (made.learner_cells, made.conflicts) == (0, 1)


def test_what_the_learner_has_removed_stays_away_unless_it_is_new():
    made = merged(written(lambda cells: [cells.pop(2), cells.pop()]))
    assert "The end" not in texts(made)
    assert "## 02.1 Write f, which returns 1" in texts(made)


def test_an_answer_to_an_exercise_that_is_no_more_stays_in_its_place():
    ours = notebook(OLD["cells"][0], OLD["cells"][5])
    made = merged(written(lambda cells: cells[3].update(source="def f(): return 1")), ours)
    assert texts(made) == ["# Exercises", "def f(): return 1", "The end"]


@pytest.mark.parametrize("seed", range(60))
def test_nothing_that_a_learner_wrote_is_lost_whatever_both_do(seed):
    chance = random.Random(seed)
    yours, ours = copy.deepcopy(OLD), copy.deepcopy(OLD)
    for cells, name in ((yours["cells"], "mine"), (ours["cells"], "ours")):
        for number in range(chance.randint(0, 5)):
            words, place = f"{name} {number}", chance.randrange(len(cells) + 1)
            if chance.random() < 0.3 and len(cells) > 1:
                cells.pop(min(place, len(cells) - 1))
            elif chance.random() < 0.5 and place < len(cells):
                cells[place]["source"] = words
            else:
                cells.insert(place, code(words, chance.choice(["cell-02", "cell-06", f"{name}{number}", ""])))
    for number, cell in enumerate(ours["cells"]):
        cell["id"] = f"cell-{number:02}"
    mine = [source(cell) for cell in yours["cells"] if source(cell).startswith("mine")]
    made = merged(yours, ours)
    lost = [words for words in mine if words not in texts(made)]
    assert len(lost) == made.conflicts
    new = [source(cell) for cell in ours["cells"] if source(cell).startswith("ours") and not is_answer(cell)]
    assert not [words for words in new if words not in texts(made)]


def test_an_update_that_stopped_half_way_is_no_reason_for_cells_to_stand_twice():
    once = merged(written(lambda cells: cells[3].update(source="def f():\n    return 1")))
    again = merged(once.notebook)
    assert texts(again) == texts(once)


def test_an_answer_that_was_written_into_the_courses_own_file_is_never_taken_for_the_courses():
    ours = copy.deepcopy(OLD)
    ours["cells"][3]["source"] = "def f():\n    return 1"
    assert is_changed(ours, laid_out(ours))
    assert "def f():\n    return 1" in texts(merge(ours, laid_out(ours), NEW))


def test_to_run_to_open_and_to_press_enter_is_not_to_write():
    opened = copy.deepcopy(OLD)
    opened["metadata"] = {"language_info": {"version": "3.11.7"}}
    opened["cells"][1] = code("import torch\n", "cell-01", output="ready")
    opened["cells"].append(code("", "e4a1"))
    assert not is_changed(opened, laid_out(OLD))
    opened["cells"].append(code("1 + 1", "e4a2"))
    assert is_changed(opened, laid_out(OLD))


def test_of_a_notebook_that_nobody_remembers_the_answers_are_taken_over():
    yours = written(lambda cells: [cells[3].update(source="def f(): return 1"), cells[0].update(source="Mine")])
    made = only_answers(yours, NEW)
    assert texts(made) == [source(cell) if i != 4 else "def f(): return 1" for i, cell in enumerate(NEW["cells"])]
    assert made.learner_cells == 1
    assert made.conflicts


def test_a_lesson_on_the_desk_shows_no_output():
    shown = notebook(code("1 + 1", "cell-00", output="2"), text("words", "cell-01"))
    bare = without_outputs(shown)
    assert (bare["cells"][0]["outputs"], bare["cells"][0]["execution_count"]) == ([], None)
    assert shown["cells"][0]["outputs"]
