"""What a class hears of predictions and checks, and that a class which is away is never felt."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from course_lib import checks
from course_lib.checks import check
from course_lib.checks.asking import predict, reveal
from course_lib.checks.catalog import find
from course_lib.checks.exercise import Case
from course_lib.checks.inside.observe import Outcome
from course_lib.checks.report import TOO_MUCH, Finding, Report
from course_lib.checks.telling import mistake_of, tell_class
from course_lib.classroom.learner import tell
from course_lib.classroom.learner.class_file import Membership
from course_lib.classroom.learner.outbox import Outbox
from course_lib.runtime.machine import free_port
from tests.classroom.conftest import in_another_process


@pytest.fixture
def told(desk):
    """A function that returns what was told. The class is away: what is told stays in the outbox."""
    Membership(f"http://127.0.0.1:{free_port()}", "learner-1", "secret", "A class").write(desk)

    def events() -> list[dict]:
        with Outbox.of(desk) as outbox:
            found = outbox.waiting("learner-1")
        return [{key: value for key, value in event.items() if key not in ("id", "at")} for event in found]

    return events


def finding(**outcome) -> Finding:
    return Finding(Case("the mean", 2, {}, "two numbers"), Outcome(**outcome), "what was seen")


def test_a_prediction_is_told_before_the_run_and_its_outcome_after_it(told):
    predict("00.1", "a")
    predict("00.2", 7)
    reveal("00.1", 100)
    reveal("00.2", 6)
    reveal("00.3", 0)
    assert told() == [
        {"kind": "predicted", "number": "00.1", "said": "a"},
        {"kind": "predicted", "number": "00.2", "said": 7.0},
        {"kind": "revealed", "number": "00.1", "said": "a", "right": False},
        {"kind": "revealed", "number": "00.2", "said": 7.0, "right": False},
        {"kind": "revealed", "number": "00.3", "said": None, "right": False},
    ]


def test_a_check_is_told_with_its_part_and_its_mistake_and_without_the_code(told, monkeypatch):
    exercise = find("02.1")
    part, *others = exercise.parts
    seen = Finding(Case(part, 2, {}, "two numbers"), Outcome("returned"), "[1.5] is not [0.7]", "A sum. Divide it.")
    monkeypatch.setattr(checks, "examine", lambda *_: Report(exercise, findings={part: seen}))
    check("02.1", lambda model: None)
    (event,) = told()
    assert event == {
        "kind": "checked",
        "number": "02.1",
        "passed": False,
        "points": sum(exercise.parts[each] for each in others),
        "part": part,
        "mistake": "A sum",
    }


def test_an_untouched_stub_is_not_told(told):
    tell_class(Report(find("02.1"), attempted=False))
    tell_class(Report(find("02.1")))
    passed = {"passed": True, "points": find("02.1").points, "part": "", "mistake": ""}
    assert told() == [{"kind": "checked", "number": "02.1", **passed}]


def test_a_failure_without_a_known_cause_is_told_by_its_kind_and_never_in_the_learners_words():
    assert mistake_of(finding(kind="raised", error="ZeroDivisionError", text="x")) == "It raises ZeroDivisionError"
    assert mistake_of(finding(kind="raised", error="MyOwnError", text="x")) == "It raises an error"
    assert mistake_of(finding(kind="stuck")) == "Its ranks wait for each other"
    assert mistake_of(replace(finding(kind="stuck"), cause="Rank 2 waits.")) == "Its ranks wait for each other"
    assert mistake_of(finding(kind="returned")) == "It returns the wrong values"
    assert mistake_of(replace(finding(kind="returned"), what=TOO_MUCH)) == "It costs more than the exercise allows"
    assert mistake_of(finding(kind="missing")) == "It could not be run"


def test_a_class_that_takes_calls_and_never_answers_delays_no_cell(desk, monkeypatch):
    """Nothing that waits for the network is done in the learner's thread: there, it would fail."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        Membership(f"http://127.0.0.1:{silent.getsockname()[1]}", "learner-1", "s", "A class").write(desk)
        started = tell("reached", section="1")  # and the channel with it
        monkeypatch.setattr(socket, "create_connection", _fail)
        monkeypatch.setattr(socket.socket, "connect", _fail)
        predict("00.1", "a")
        reveal("00.1", 100)
        assert started
        with Outbox.of(desk) as outbox:
            assert len(outbox.waiting("learner-1")) == 3


def _fail(*_):
    raise AssertionError("a cell waits for the network")


def test_the_classroom_is_imported_by_nobody_who_has_none(desk):
    code = "import sys\nfrom course_lib.classroom.learner import tell\ntell('slower')\n"
    code += "print({'tornado', 'sqlite3', 'ssl'} & {*sys.modules})"
    assert in_another_process(code, desk).communicate()[0] == "set()\n"
