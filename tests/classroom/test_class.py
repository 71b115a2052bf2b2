"""A class from both ends: what learners send is counted and kept, and what the instructor asks reaches everybody."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from course_lib.classroom.content import content
from course_lib.classroom.server.record_file import read_events
from course_lib.classroom.server.room import Room
from course_lib.classroom.server.tally import Tally
from course_lib.classroom.server.view import MANY_TRIES
from tests.classroom.serving import class_here, come_back, enter, event_of

pytestmark = pytest.mark.anyio

LETTERS_QUESTION = "00.1"  # a), b) and c), which is right
NUMBER_QUESTION = "00.2"  # 6 is right, 3 a known mistake


def question(snapshot, number):
    return next(one for one in snapshot["questions"] if one["number"] == number)


def exercise(snapshot, number):
    return next(one for one in snapshot["exercises"] if one["number"] == number)


async def test_every_choice_is_counted_and_the_last_word_of_a_learner_counts(served):
    ada, ben = await enter(served, "Ada"), await enter(served, "Ben")
    for learner, said in ((ada, "a"), (ben, "b"), (ada, "c")):
        assert await learner.say(kind="predicted", number=LETTERS_QUESTION, said=said) == ""
    assert await ben.say(kind="predicted", number=NUMBER_QUESTION, said=3) == ""
    assert await ada.say(kind="predicted", number=NUMBER_QUESTION, said=77) == ""
    shown = await served.snapshot()
    assert question(shown, LETTERS_QUESTION)["before"] == {"counts": [0, 1, 1], "other": 0}
    assert question(shown, NUMBER_QUESTION)["before"] == {"counts": [0, 1, 0, 0, 0, 0], "other": 1}
    assert (shown["learners"], shown["here"]) == (2, 2)


async def test_a_question_is_asked_answered_closed_and_revealed(served):
    ada, ben = await enter(served, "Ada"), await enter(served, "Ben")
    asked = (await served.act("ask", number=LETTERS_QUESTION, round="after"))["asked"]
    for learner, said in ((ada, "a"), (ben, "c")):
        await learner.wait_for(lambda state: state["asked"] and state["asked"]["open"])
        assert await learner.say(kind="answered", asked=asked, said=said) == ""
        await learner.wait_for(lambda state, said=said: state["asked"]["said"] == said)
        assert learner.state["asked"]["revealed"] is None
    assert question(await served.snapshot(), LETTERS_QUESTION)["after"] == {"counts": [1, 0, 1], "other": 0}
    await served.act("close", asked=asked)
    assert "closed" in await ada.say(kind="answered", asked=asked, said="c")
    await served.act("reveal", asked=asked)
    await ben.wait_for(lambda state: state["asked"]["revealed"])
    revealed = ben.state["asked"]["revealed"]
    assert (revealed["counts"], revealed["other"], revealed["right"]) == ([1, 0, 1], 0, 2)
    assert revealed["believes"][0] == "Ranks share memory"
    await served.act("close", asked=asked)  # and away
    await ben.wait_for(lambda state: state["asked"] is None)


async def test_until_it_is_revealed_nothing_that_is_sent_gives_the_answer_away(served):
    ada = await enter(served)
    await served.act("ask", number=NUMBER_QUESTION, round="before")
    await ada.wait_for(lambda state: state["asked"])
    assert ada.state["asked"]["choices"] == []  # of a number that is typed
    await served.act("ask", number=LETTERS_QUESTION, round="before")
    await ada.wait_for(lambda state: state["asked"]["number"] == LETTERS_QUESTION)
    told = str(ada.told)
    for prediction in (content().questions[LETTERS_QUESTION], content().questions[NUMBER_QUESTION]):
        assert all(choice.why not in told for choice in prediction.choices)
        assert all(choice.believes not in told for choice in prediction.choices if choice.believes)


async def test_a_check_says_who_passed_who_tries_and_which_mistake_was_made(served):
    ada, ben = await enter(served, "Ada"), await enter(served, "Ben")
    part = next(iter(content().exercises["02.1"].parts))
    failed = {"kind": "checked", "number": "02.1", "passed": False, "points": 0, "part": part}
    for learner in (ada, ben, ben):
        await learner.say(**failed, mistake="Sums, and forgets to divide")
    await ada.say(kind="checked", number="02.1", passed=True, points=3, part="", mistake="")
    await ada.say(**failed, mistake="Sums, and forgets to divide")  # once passed, she may play with it
    shown = exercise(await served.snapshot(), "02.1")
    assert (shown["passed"], shown["trying"]) == (["Ada"], ["Ben"])
    assert shown["mistakes"] == [{"part": part, "mistake": "Sums, and forgets to divide", "count": 2}]


async def test_who_fails_again_and_again_without_raising_a_hand_is_named_until_the_class_moves_on(served):
    ada = await enter(served, "Ada")
    failed = {"kind": "checked", "passed": False, "points": 0, "part": "", "mistake": ""}
    for _ in range(MANY_TRIES):
        assert (await served.snapshot())["quiet"] == []
        await ada.say(**failed, number="02.2")
    assert (await served.snapshot())["quiet"] == [{"name": "Ada", "number": "02.2", "tries": MANY_TRIES}]
    await ada.say(kind="stuck", on=True)
    assert (await served.snapshot())["quiet"] == []
    await ada.say(kind="stuck", on=False)
    await served.act("ask", number="02.4", round="before")
    assert (await served.snapshot())["quiet"] == []


async def test_hands_stand_in_a_line_that_moves_up(served):
    ada, ben = await enter(served, "Ada"), await enter(served, "Ben")
    section = content().sections["06"][0]
    await ada.say(kind="stuck", on=True, lesson="06", section=section)
    await ben.say(kind="showed", source="x = [\n  1]", lesson="06", section="no such heading")
    await ben.wait_for(lambda state: state["line"] == 2)
    hands = (await served.snapshot())["hands"]
    assert [(hand["name"], hand["section"], hand["source"]) for hand in hands] == [
        ("Ada", section, None),
        ("Ben", "", "x = [\n  1]"),
    ]
    await served.act("lower", learner=ada.learner)
    await ada.wait_for(lambda state: not state["stuck"])
    await ben.wait_for(lambda state: state["line"] == 1)
    await ada.say(kind="stuck", on=True, lesson="06", section=section)
    await ada.wait_for(lambda state: state["line"] == 2)
    await ben.say(kind="stuck", on=False)
    await ada.wait_for(lambda state: state["line"] == 1)


async def test_the_map_of_the_class_moves_with_it(served):
    ada = await enter(served)
    first, second = content().sections["06"][:2]
    for section in (first, second):
        await ada.say(kind="reached", lesson="06", section=section)
    await ada.say(kind="slower")
    shown = await served.snapshot()
    (lesson,) = (one for one in shown["lessons"] if one["number"] == "06")
    assert lesson["sections"][:2] == [
        {"heading": first, "here": 0, "been": 1},
        {"heading": second, "here": 1, "been": 1},
    ]
    assert shown["slower"] == 1
    await served.act("faster")
    assert (await served.snapshot())["slower"] == 0


def test_a_class_that_is_started_again_is_where_it_was(tmp_path):
    record = tmp_path / "class.db"

    async def play():
        async with class_here(record, title="Monday") as served:
            ada, ben = await enter(served, "Ada"), await enter(served, "Ben")
            asked = (await served.act("ask", number=NUMBER_QUESTION, round="after"))["asked"]
            await ada.say(kind="answered", asked=asked, said=3)
            await ada.say(kind="answered", asked=asked, said=6)
            await ben.say(kind="predicted", number=LETTERS_QUESTION, said="b")
            await ben.say(kind="checked", number="02.1", passed=False, points=0, part="", mistake="of his own")
            await ben.say(kind="reached", lesson="06", section=content().sections["06"][0])
            await ada.say(kind="stuck", on=True, lesson="06", section="")
            await ada.say(kind="slower")
            await ada.say(kind="showed", source="x = 1", lesson="06", section="")
            await served.act("show", learner=ada.learner)
            await served.act("discuss", asked=asked, seconds=90)
            await served.act("go", lesson="06", section=content().sections["06"][0])
            for learner in (ada, ben):
                await learner.say(kind="done", on=True)
            (asked_aloud,) = await ben.send({"kind": "wondered", "text": "Why two?"})
            await ada.say(kind="seconded", question=asked_aloud, on=True)
            before, kept = await served.snapshot(), vars(served.room.tally)
            again = Room(copy_of(record), content())
            assert vars(again.tally) == kept
            assert again._bytes == served.room._bytes
            again.close()
        async with class_here(record) as served:
            ada = await come_back(served, ada.learner, ada.secret)
            assert ada.state["asked"]["said"] == 6
            now = {"here": 1, "address": served.url, "missing": [], "done": 1}
            assert {**await served.snapshot(), "now": 0} == {**before, **now, "now": 0}
            assert served.room.title == "Monday"

    asyncio.run(play())


def copy_of(record):
    """As it would be found by somebody who starts the class again now."""
    copy = record.with_name("copy.db")
    for end in ("", "-wal"):
        copy.with_name(copy.name + end).write_bytes(record.with_name(record.name + end).read_bytes())
    return copy


def test_an_event_that_is_sent_again_is_kept_once_and_acknowledged_again(tmp_path):
    record = tmp_path / "class.db"

    async def play():
        async with class_here(record) as served:
            ada = await enter(served)
            first, second = (event_of(kind="predicted", number=LETTERS_QUESTION, said=said) for said in "ab")
            assert await ada.say(**first) == ""
            assert await ada.say(**second) == ""
            ada.kept.clear()
            assert await ada.say(**first) == ""
            shown = question(await served.snapshot(), LETTERS_QUESTION)
            assert shown["before"]["counts"] == [0, 1, 0]  # the old word does not come back
        assert len([event for learner, event in read_events(record) if learner]) == 2

    asyncio.run(play())


def test_what_a_newer_course_no_longer_has_is_left_out_of_an_older_record():
    course = content()
    fewer = replace(course.questions[LETTERS_QUESTION], choices=course.questions[LETTERS_QUESTION].choices[1:])
    left = {number: one for number, one in course.questions.items() if number != NUMBER_QUESTION}
    tally = Tally(replace(course, questions={**left, LETTERS_QUESTION: fewer}, exercises={}))
    happened = [
        {"kind": "predicted", "number": NUMBER_QUESTION, "said": 3.0},
        {"kind": "predicted", "number": LETTERS_QUESTION, "said": "c"},
        {"kind": "predicted", "number": LETTERS_QUESTION, "said": "b"},
        {"kind": "ask", "asked": "1", "number": NUMBER_QUESTION, "round": "before"},
        {"kind": "answered", "asked": "1", "said": 3.0},
        {"kind": "reveal", "asked": "1"},
        {"kind": "checked", "number": "00.1", "passed": True},
        {"kind": "slower"},
    ]
    for event in happened:
        tally.apply("ada", event)
    assert list(tally.answers) == [(LETTERS_QUESTION, "before")]
    assert tally.answers[LETTERS_QUESTION, "before"].said == {"ada": "b"}
    assert (tally.askings, dict(tally.exercises), tally.slower) == ({}, {}, {"ada"})
