"""What a class is asked, in a cell: for who is not in `course lab`."""

from __future__ import annotations

import pytest

from course_lib import class_question
from course_lib.classroom.learner.class_file import Membership
from course_lib.classroom.learner.outbox import Outbox
from course_lib.runtime.machine import free_port

ASKED = {
    "asked": "a" * 32,
    "number": "00.1",
    "question": "What is `counter`?",
    "choices": ["106", "103", "100"],
    "typed": False,
    "unit": "",
    "round": "before",
    "open": True,
    "said": None,
    "revealed": None,
}
REVEALED = {"counts": [2, 0, 5], "other": 0, "right": 2, "believes": ["Ranks share memory", "The last writes", ""]}


@pytest.fixture
def say(desk):
    """A function that has the class ask this."""
    Membership(f"http://127.0.0.1:{free_port()}", "1", "secret", "A class").write(desk)

    def ask(**asked) -> None:
        with Outbox.of(desk) as outbox:
            outbox.add_news("1", state={"asked": {**ASKED, **asked} if asked else None})

    return ask


def told(desk) -> list[tuple[str, str, object]]:
    with Outbox.of(desk) as outbox:
        return [(event["kind"], event["asked"], event["said"]) for event in outbox.waiting("1")]


def test_it_is_shown_and_answered(desk, say, capsys):
    say(open=True)
    class_question()
    assert "Answer with class_question('a')" in capsys.readouterr().out
    assert told(desk) == []
    class_question("B")
    assert "You said: b) 103" in capsys.readouterr().out
    assert told(desk) == [("answered", "a" * 32, "b")]


def test_an_answer_that_is_none_is_refused_with_what_to_say(desk, say):
    say(open=True)
    with pytest.raises(ValueError, match="with one of the letters a, b, c"):
        class_question("z")
    assert told(desk) == []


def test_what_is_closed_is_not_answered_and_what_is_revealed_is_shown_with_its_misconceptions(desk, say, capsys):
    say(open=False)
    class_question("a")
    assert "This question is closed" in capsys.readouterr().out
    assert told(desk) == []
    say(open=False, revealed=REVEALED)
    class_question()
    said = capsys.readouterr().out
    assert "2  a) 106 (Ranks share memory)" in said
    assert "5  c) 100 (right)" in said


def test_without_a_question_or_a_class_it_is_said_what_is_the_matter(desk, capsys, say):
    class_question()
    assert "Nothing has been heard from the class yet" in capsys.readouterr().out
    say()
    class_question()
    assert "no question for the class right now" in capsys.readouterr().out
    (desk / ".course" / "class.json").unlink()
    class_question()
    assert "join one with join_class" in capsys.readouterr().out
