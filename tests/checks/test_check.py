"""`check`, `hint` and `solution` as a learner meets them, and the plain data that answers are judged by."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from course_lib.checks import check, examine, hint, solution
from course_lib.checks.catalog import find
from course_lib.checks.exercise import differs
from course_lib.checks.inside import observe as observing
from course_lib.checks.inside.observe import Outcome
from course_lib.checks.inside.plain import Other, decode, encode
from course_lib.checks.progress_file import read, tries
from course_lib.command import main
from course_lib.lessons.lesson_02.evaluate_together import skips_when_empty
from tests.checks.bank.lesson_02 import forgets_the_epoch, sums_a_flat_copy
from tests.checks.class_of import ROOT
from tests.conftest import Kernel

pytestmark = pytest.mark.usefixtures("progress_file")


def right(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def test_a_right_answer_earns_its_points_and_is_remembered(capsys):
    assert check("02.1", right).points == 3
    assert "passed, 3 of 3 points" in capsys.readouterr().out
    assert check("02.1", sums_a_flat_copy).points == 0
    assert read()["02.1"] == {"hints": 0, "points": 3, "tries": 2}  # the best try counts


def test_a_wrong_answer_is_told_what_was_seen_the_idea_and_what_to_do_next(capsys):
    assert check("02.2", forgets_the_epoch).points == 3
    told = capsys.readouterr().out
    for part in ("3 of 4 points", "The smallest case that fails", "30 examples", "same order in both epochs"):
        assert part in told
    for part in ("The epoch must change the seed", "hint('02.2')", "or read lesson 02"):
        assert part in told


def test_an_answer_that_keeps_something_between_calls_is_told_so():
    def adds_to_what_came_before(total, count, both=[0.0, 0.0]):  # noqa: B006
        both[0] += total
        both[1] += count
        sums = torch.tensor(both, dtype=torch.float64)
        dist.all_reduce(sums)
        return sums[0] / sums[1]

    report = examine(find("02.3"), adds_to_what_came_before, seed=1)
    assert report.finding
    assert report.finding.cause.startswith("By itself, this call gives the right result")


def test_a_hang_is_shown_as_the_launcher_shows_it(capsys):
    assert check("02.3", skips_when_empty).points == 2
    told = capsys.readouterr().out
    assert "for rank 1, which has returned" in told
    assert "waits in all_reduce" in told


def test_after_a_hang_nobody_waits_for_the_next_one():
    def waits(vector):
        if dist.get_rank() == 0:
            dist.barrier()
        return vector, []

    report = examine(find("00.2"), waits, seed=1)
    assert report.findings["two ranks"].outcome.kind == "stuck"
    assert report.untried == ("more ranks", "pieces of unequal length")
    assert report.points == 0


def test_an_answer_of_another_form_is_refused_in_words(capsys):
    assert check("02.2", lambda *_: [[1, 2], None]).points == 0
    assert "calling it, or using what it returned, raised TypeError" in capsys.readouterr().out


def test_hints_come_one_at_a_time_and_the_solution_after_a_try(capsys):
    hints = find("02.3").hints
    hint("02.3")
    assert capsys.readouterr().out == f"1. {hints[0]}\n"
    solution("02.3")
    assert "Try it first" in capsys.readouterr().out
    for _ in range(5):
        hint("02.3")
    told = capsys.readouterr().out
    assert told.endswith(
        f"3. {hints[2]}\nThat was the last hint. Once you have tried it yourself, solution('02.3') shows our answer.\n"
    )
    check("02.3", lambda total, count: 0.0)
    capsys.readouterr()
    solution("02.3")
    told = capsys.readouterr().out
    assert "def evaluate_together(total, count):" in told
    assert "SOLUTION" not in told


def test_an_untouched_stub_is_no_try(capsys):
    def stub(model):
        raise NotImplementedError()

    assert check("02.1", stub).points == 0
    assert "not attempted yet" in capsys.readouterr().out
    assert tries("02.1") == 0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"02.1": 3}', '{"02.1": {"tries": "many"}}'])
def test_a_torn_progress_file_costs_nothing_but_what_it_lost(progress_file, content):
    progress_file.write_text(content)
    hint("02.1")
    assert json.loads(progress_file.read_text())["02.1"] == {"tries": 0, "points": 0, "hints": 1}


@pytest.mark.slow
def test_a_notebook_is_checked_from_the_command_line(tmp_path, capsys):
    assert main(["check", str(ROOT / "solutions" / "02_ddp.ipynb")]) == 0
    assert capsys.readouterr().out.count("passed") == 4
    assert main(["check", str(ROOT / "exercises" / "02_ddp.ipynb")]) == 1
    assert capsys.readouterr().out.count("not attempted") == 4
    (tmp_path / "mine.ipynb").write_text("{")
    assert main(["check", str(tmp_path / "mine.ipynb")]) == 2
    assert "not a notebook" in capsys.readouterr().err
    assert main(["check", str(ROOT / "notebooks" / "missing.ipynb")]) == 2


@pytest.mark.parametrize("number", ["2.1", "02.9", "", 2.1, None, ["02.1"]])
def test_a_number_that_is_none_gets_a_sentence(number):
    with pytest.raises(ValueError, match=r"the exercises are numbered like 02\.1: give one of"):
        check(number, right)


@pytest.mark.slow
def test_in_a_notebook_an_error_shows_the_cells_own_line(kernel: Kernel, progress_file):
    kernel.run(f"import os; os.environ['COURSE_LIB_PROGRESS'] = {str(progress_file)!r}")
    cell = kernel.run(
        "from course_lib.checks import check\n"
        "def average_gradients(model):\n    return model.layers[0]\n"
        "check('02.1', average_gradients)"
    )
    assert cell.error is None
    assert "AttributeError" in cell.html
    assert "return model.layers[0]" in cell.html
    assert "course_lib/checks" not in cell.html
    assert cell.text == ""  # nothing stray
    assert cell.result == "0.0"  # nbgrader reads the points from here


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=15,
)


@pytest.mark.slow
@given(plain_values)
def test_plain_data_survives_the_journey(value):
    assert decode(json.loads(json.dumps(encode(value)))) == value


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)])
def test_tensors_survive_the_journey(dtype, shape):
    tensor = torch.randn(shape).mul(5).to(dtype)
    back = decode(json.loads(json.dumps(encode(tensor.expand(2, *shape).transpose(0, -1)))))
    assert back.dtype == dtype
    assert torch.equal(back, tensor.expand(2, *shape).transpose(0, -1))


@pytest.mark.parametrize(
    "number",
    [np.int64(3), np.uint8(3), np.float32(3), np.longdouble(3)]
    + [torch.tensor([3]).to(dtype) for dtype in (torch.uint8, torch.int16, torch.uint64, torch.float8_e5m2)],
    ids=repr,
)
def test_a_single_number_is_one_in_any_dtype(number):
    assert differs(decode(json.loads(json.dumps(encode({"n": number})))), {"n": 3}) is None
    assert differs(decode(json.loads(json.dumps(encode(number)))), 4) == "is 3, it should be 4"


@pytest.mark.parametrize(
    "value",
    [np.ones(1), np.complex64(1), torch.ones(1, dtype=torch.complex64), torch.ones(2, dtype=torch.uint8)],
    ids=repr,
)
def test_arrays_of_other_types_leave_only_their_name(value):
    assert isinstance(decode(encode(value)), Other)


def test_what_is_no_plain_data_leaves_only_its_name():
    class Anything(float):
        def __eq__(self, other):
            return True

        __hash__ = None

    assert type(encode(Anything(1))) is float
    found = decode(encode([object(), len, 1j]))
    assert all(isinstance(thing, Other) for thing in found)
    assert differs(found, decode(encode([object(), len, 1j])))  # one equals no other


@pytest.mark.parametrize(
    "data",
    [
        {"points": 100},
        {"tensor": "float64", "shape": [2], "data": "AAAA"},
        {"tensor": "float99", "shape": [], "data": ""},
        {"tensor": "int64", "shape": [-1], "data": ""},
        {"tensor": "int64", "shape": [1_000_000], "data": ""},
        {"dict": [[{"dict": []}, 1]]},
        {"dict": [1]},
        {"other": 5},
    ],
)
def test_forged_data_is_refused(data):
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        decode(data)
    honest = {**vars(Outcome("returned")), "values": [encode(torch.ones(2))]}
    assert Outcome.of_record(honest).kind == "returned"
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        Outcome.of_record({**honest, "values": [data]})


@pytest.mark.parametrize(
    ("value", "right", "says"),
    [
        (1.0, 1.0 + 1e-12, None),
        (1, 1.0, None),
        (True, 1.0, "is True"),
        (1.5, 1, "is 1.5, it should be 1"),
        (float("nan"), 1.0, "is nan"),
        ([1, 2], (1, 2), None),
        ([1], [1, 2], "is a list of 1, it should be a list of 2"),
        ({"a": 1}, {"a": 2}, "a is 1, it should be 2"),
        ({"b": 1}, {"a": 2}, "it should be a dict with the keys 'a'"),
        (None, torch.zeros(2), "is None, it should be a tensor of shape (2,)"),
        (torch.zeros(3), torch.zeros(2), "has shape (3,), it should have (2,)"),
        (torch.zeros(2), torch.zeros(2).double(), None),
        (torch.zeros(2), torch.zeros(2).long(), "it should be of torch.int64"),
        (0.4688932, 0.468893, None),
        (0.46889, 0.46898, "is 0.46889, it should be 0.46898"),
        (1.23456789, 1.23466789, "is 1.23457, it should be 1.23467"),
        (7680.0, 7680, None),
        (torch.tensor([3]), 3, None),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0]), "it should be [1, 2]"),
        (torch.zeros(20), torch.ones(20), "is off by up to 1: at [0] it is 0, it should be 1"),
    ],
)
def test_a_difference_is_a_sentence(value, right, says):
    found = differs(value, right)
    assert found is None if says is None else says in found


def waits_at(answer, case: int) -> int:
    if case == answer and dist.get_rank() == 0:
        return -1  # and rank 1 waits for it
    dist.all_reduce(torch.ones(1))
    return case


def test_cases_that_ended_before_a_hang_are_not_tried_again(monkeypatch):
    launches, launch = [], observing._launch

    def counted(drive, calls, *arguments, **keywords):
        launches.append([inputs["case"] for _, inputs in calls])
        return launch(drive, calls, *arguments, **keywords)

    monkeypatch.setattr(observing, "_launch", counted)
    trial = observing.Trial(waits_at, 3, [(2, {"case": case}) for case in range(6)], 60.0)
    kinds = [trial.outcome(place).kind for place in range(6)]
    assert kinds == ["returned"] * 3 + ["stuck"] + ["returned"] * 2
    assert launches == [[0], [1, 2, 3, 4, 5], [3], [4, 5]]


def test_a_very_long_integer_is_no_plain_data():
    assert encode(1 << 20_000) == {"other": "int of 20001 bits"}
    assert encode(1 << 99) == 1 << 99


def raises_on_rank_1(number: int) -> int:
    if dist.get_rank() == 1 and number == 2:
        raise ValueError("on rank 1\n\nin a second paragraph")
    dist.barrier()
    return number


def ends_on_rank_1(number: int) -> int:
    if dist.get_rank() == 1 and number == 2:
        os._exit(3)
    dist.barrier()
    return number


def call_with(answer, number: int):
    return answer(number)


def several(answer) -> list[tuple]:
    return [(answer, {"number": number}) for number in range(4)]


def test_in_brief_an_error_is_named_without_a_launch_of_its_own():
    def not_yet(number: int):
        raise NotImplementedError(f"{number}\n\nmore")

    told = observing.observe_many(call_with, several(not_yet), 2, 60.0, brief=True)
    assert [(outcome.kind, outcome.error, outcome.text) for outcome in told] == [("raised", "NotImplementedError", "0")]
    assert observing.observe_many(call_with, several(not_yet), 2, 60.0) == []


@pytest.mark.parametrize("answer", [raises_on_rank_1, ends_on_rank_1])
def test_in_brief_nobody_is_told_an_error_that_comes_of_anothers(answer):
    """Rank 0 waits for rank 1, and finds that it is gone: that is a RuntimeError of gloo's, and not the cause."""
    told = observing.observe_many(call_with, several(answer), 2, 60.0, brief=True)
    assert [outcome.kind for outcome in told[:2]] == ["returned", "returned"]
    assert [outcome.error for outcome in told[2:]] in ([], ["ValueError"] if answer is raises_on_rank_1 else [])
