"""The report of a class: what its page and its tables say, and that nothing in them is anything but text."""

from __future__ import annotations

import asyncio
import csv
import uuid
from html.parser import HTMLParser
from pathlib import Path

import pytest

from course_lib.checks.catalog import predictions
from course_lib.classroom.agenda import BREAK
from course_lib.classroom.content import content
from course_lib.classroom.report import write_report
from course_lib.classroom.report.history import History, read_history
from course_lib.classroom.report.tomorrow import efforts, lost, points
from course_lib.classroom.server.record_file import BadRecord
from course_lib.classroom.server.room import Room
from course_lib.classroom.server.tally import Tally
from course_lib.command import main
from course_lib.grading.pages import DARK, LIGHT

PAGES = Path(__file__).parents[2] / "course_lib" / "classroom" / "pages"
NAMES = ("Ada", "<script>alert(1)</script>", '=HYPERLINK("http://example.org")')
BUBBLE = {"lesson": "06", "section": "1 · The bubble"}
MISTAKE = "@SUM(1): `contiguous` is missing, <img src=x>"


def said(kind: str, **what) -> dict:
    return {"id": uuid.uuid4().hex, "kind": kind, "at": 0.0, **what}


async def hold(path: Path) -> None:
    """A short class: all are wrong about 06.2 at first, two see it after."""
    room = Room(path, content(), title="Class <7>")
    room.deliver_in(asyncio.get_running_loop())
    ids = [(await room.let_in(name))[0].learner for name in NAMES]

    def say(place: int, kind: str, **what) -> None:
        assert room.take(ids[place], [said(kind, **what)], lambda: None)[1] == {}

    for place, letter in enumerate("aac"):
        say(place, "predicted", number="06.2", said=letter)
    asked = (await room.act("ask", number="06.2", round="after"))["asked"]
    for place, letter in enumerate("bba"):
        say(place, "answered", asked=asked, said=letter)
    await room.act("reveal", asked=asked)
    say(0, "predicted", number="06.1", said=-12345)
    say(0, "checked", number="02.1", passed=False, points=0, part="", mistake=MISTAKE)
    say(0, "checked", number="02.1", passed=True, points=2, part="", mistake="")
    say(1, "checked", number="02.1", passed=False, points=0, part="", mistake=MISTAKE)
    for place in (0, 1):
        say(place, "reached", **BUBBLE)
    say(1, "stuck", on=True, **BUBBLE)
    say(1, "showed", source="my = secret", **BUBBLE)
    say(2, "stuck", on=True, **BUBBLE)
    await room.act("lower", learner=ids[1])
    say(0, "slower")
    room.close()


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("class") / "class.db"
    asyncio.run(hold(path))
    return path


@pytest.fixture(scope="module")
def history(record) -> History:
    return read_history(record)


@pytest.fixture(scope="module")
def report(record, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("report") / "new" / "folder"
    write_report(record, out)
    return out


class Texts(HTMLParser):
    """What a page says, its tags, and the rows of its tables."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.said = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        self.said += data
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.rstrip("\n")


def rows_of(report: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((report / name).read_text().splitlines()))


def test_a_question_has_before_and_after_and_the_misconception_of_every_choice(report):
    rows = [row for row in rows_of(report, "questions.csv") if row["number"] == "06.2"]
    choices = predictions()["06.2"].choices
    assert [row["believes"] for row in rows] == [choice.believes for choice in choices]
    assert [row["right"] for row in rows] == ["no", "yes", "no", "no"]
    assert [(row["before"], row["after"]) for row in rows] == [("2", "1"), ("0", "2"), ("1", "0"), ("0", "0")]


def test_the_page_begins_with_the_misconception_that_most_have_kept(report):
    page = Texts((report / "index.html").read_text())
    belief = predictions()["06.2"].choices[0].believes
    assert page.said.index("1 of 3 still believed this in 06.2 (2 at first)") < page.said.index("Misconceptions")
    charted, listed = (row for row in page.rows if row and row[0] == belief)
    assert (charted[2], listed) == ("2 → 1", [belief, "2", "1", "06.2"])


def test_what_to_say_tomorrow_is_the_belief_the_exercise_and_the_section(history):
    belief, exercise, section = points(history)
    assert belief.title == predictions()["06.2"].choices[0].believes
    assert predictions()["06.2"].right.why in belief.say
    assert exercise.title == "Exercise 02.1, Average the gradients by hand"
    assert exercise.say == f"The most frequent mistake: {MISTAKE}"
    assert (section.title, section.seen.split()[0]) == ("06 · 1 · The bubble", "3")


def test_a_class_that_understood_everything_has_nothing_to_hear_tomorrow(tmp_path):
    Room(tmp_path / "class.db", content()).close()
    assert points(read_history(tmp_path / "class.db")) == []


def history_of(*happened: tuple[str, dict]) -> History:
    """A class in which learners did this."""
    events = [(learner, {"received": 0.0, "part": "", "mistake": "", **event}) for learner, event in happened]
    tally = Tally(content())
    for learner, event in events:
        tally.apply(learner, event)
    return History("", {}, events, tally)


def test_a_belief_that_survived_is_told_before_one_of_which_more_were_not_asked_again():
    first = [(who, {"kind": "predicted", "number": "06.2", "said": "a"}) for who in ("ada", "ben", "cy")]
    once = [(who, {"kind": "predicted", "number": "00.1", "said": "a"}) for who in ("ada", "ben", "cy", "dee")]
    again = ("", {"kind": "ask", "asked": "1", "number": "06.2", "round": "after"})
    kept = [(who, {"kind": "answered", "asked": "1", "said": said}) for who, said in (("ada", "a"), ("ben", "a"))]
    belief, *_ = points(history_of(*first, *once, again, *kept))
    assert belief.title == predictions()["06.2"].choices[0].believes
    assert belief.seen.startswith("2 of 2 still believed this in 06.2 (3 at first).")


def test_a_break_between_two_checks_is_not_work():
    heading = f"02.2 {content().exercises['02.2'].title}"
    reached = ("ada", {"kind": "reached", "lesson": "02", "section": heading})
    minutes = {2: False, 2 + BREAK: False, 3 + BREAK: True}  # coffee, after a failed check
    checked = [
        ("ada", {"kind": "checked", "number": "02.2", "passed": passed, "received": 60.0 * minute})
        for minute, passed in minutes.items()
    ]
    (effort,) = efforts(history_of(reached, *checked))
    assert (effort.minutes, effort.passed) == ([3.0], 1)


def test_a_phone_is_lost_where_the_class_was_asked_last_and_who_is_nervous_counts_once():
    asked = ("", {"kind": "ask", "asked": "1", "number": "06.1", "round": "before"})
    wondered = ("phone", {"kind": "wondered", "id": "7", "text": "Why?", "lesson": "", "section": ""})
    elsewhere = ("ada", {"kind": "reached", "lesson": "02", "section": content().sections["02"][0]})
    seconded = ("ada", {"kind": "seconded", "question": "7", "on": True})
    nervous = [("ben", {"kind": "stuck", "on": on, **BUBBLE}) for on in (True, False, True, False)]
    found, _ = lost(history_of(asked, wondered, elsewhere, seconded, *nervous))
    assert found == {("06", BUBBLE["section"]): {"phone", "ada", "ben"}}


def test_an_unforeseen_number_is_counted_as_another_one(report):
    rows = [row for row in rows_of(report, "questions.csv") if row["number"] == "06.1"]
    assert (rows[-1]["choice"], rows[-1]["before"]) == ("another number", "1")


def test_a_learner_has_a_line_with_answers_points_hands_and_place(report):
    ada = rows_of(report, "learners.csv")[0]
    expected = {"learner": "Ada", "06.2 before": "a", "06.2 after": "b", "02.1 points": "2", "hands": "0"}
    assert {key: ada[key] for key in expected} == expected
    assert (ada["last lesson"], ada["last section"]) == ("06", "1 · The bubble")


def test_an_exercise_says_who_passed_and_how_many_made_which_mistake(report):
    row = next(
        row for row in Texts((report / "index.html").read_text()).rows if row[0].startswith("02.1") and len(row) > 3
    )
    assert row[1:3] == ["1", "2"]
    assert row[3].startswith("2 @SUM(1): contiguous is missing, <img src=x>")


def test_hands_are_told_in_order_and_until_when_they_waited(history, report):
    first, second = history.hands
    assert [history.name(hand.learner) for hand in history.hands] == [NAMES[1], NAMES[2]]
    assert first.showed
    assert first.until is not None
    assert second.until is None
    assert "my = secret" not in (report / "index.html").read_text()


def test_a_section_says_when_the_first_and_the_last_came(history):
    (visit,) = history.visits
    assert (visit.lesson, visit.section, len(visit.times)) == ("06", "1 · The bubble", 2)
    assert visit.times[0] <= visit.half <= visit.times[-1]


def test_names_are_only_text(report):
    page = Texts((report / "index.html").read_text())
    assert all(name in page.said for name in NAMES)
    assert page.tags.count("script") == 1  # that sorts the table
    assert "img" not in page.tags
    assert "Class <7>" in page.said


@pytest.mark.parametrize("name", ["learners.csv", "questions.csv"])
def test_no_cell_is_a_formula(report, name):
    cells = [cell for row in csv.reader((report / name).read_text().splitlines()) for cell in row]
    risky = [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert [cell for cell in risky if not _is_number(cell)] == []


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_a_class_in_which_nothing_has_happened_has_a_report(tmp_path):
    Room(tmp_path / "class.db", content()).close()
    assert main(["class", "report", str(tmp_path / "class.db"), "--out", str(tmp_path / "out")]) == 0
    assert "nothing has happened yet" in (tmp_path / "out" / "index.html").read_text()


def test_what_is_no_record_is_refused_with_a_sentence(tmp_path, capsys):
    (tmp_path / "other.db").write_text("a letter to my aunt, which is long enough to be no database at all")
    for name in ("other.db", "missing.db"):
        with pytest.raises(BadRecord):
            read_history(tmp_path / name)
        assert main(["class", "report", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
        assert name in capsys.readouterr().err
    assert not (tmp_path / "missing.db").exists()
    assert not (tmp_path / "out").exists()


def test_the_live_pages_have_the_colors_of_the_others():
    style = (PAGES / "class.css").read_text()
    for colors in (LIGHT, DARK):
        assert " ".join(f"--{name}: {color};" for name, color in colors.items()) in style


def test_no_live_page_can_turn_text_into_html():
    for script in PAGES.glob("*.js"):
        assert not any(
            word in script.read_text() for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write")
        )
