"""Half a day by the plan, with six learners who answer, err, get stuck and take breaks: what the instructor sees.

The class is real, over HTTP and WebSockets; only its clock is ours. Four learners have desks; Eve and Fay have phones,
which are in no section. The instructor leads with the slides, so nobody is called anywhere.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from course_lib.checks import predictions
from course_lib.checks.prediction import LETTERS, Prediction
from course_lib.classroom.agenda import BREAK, Item, lessons_from, make_agenda
from course_lib.classroom.report.history import History, read_history
from course_lib.classroom.report.tomorrow import efforts, points
from course_lib.classroom.server import room
from course_lib.classroom.teaching import find_plan
from tests.classroom.serving import Learner, Served, class_here, enter

pytestmark = pytest.mark.slow

DESKS, PHONES = ("Ada", "Ben", "Cy", "Dee"), ("Eve", "Fay")
SURVIVES = "02.4"  # half of the class keeps its first choice after the discussion
NOT_ASKED_AGAIN = "02.5"  # most are wrong, and it is revealed at once
LOST_IN = "3 · Four ways to send a gradient"
LONGEST = "02.2"
MISTAKE = "every rank draws its own order, so some examples are read twice"


class Day:
    """The morning: a clock, the people, and what the instructor saw at some moments."""

    def __init__(self, served: Served, people: dict[str, Learner]) -> None:
        self.served, self.people, self.now, self.chance = served, people, 1_800_000_000.0, random.Random(43)
        self.seen: dict[str, dict] = {}

    async def say(self, name: str, kind: str, *, after: float = 0.0, **what: object) -> None:
        """Somebody does something, that many minutes later."""
        self.now += 60 * after
        assert await self.people[name].say(kind=kind, **what) == ""

    async def look(self, moment: str) -> None:
        self.seen[moment] = await self.served.snapshot()

    async def ask(self, question: Prediction, answers: list[object], round_: str = "before") -> str:
        """All answer, one after another."""
        asked = (await self.served.act("ask", number=question.number, round=round_))["asked"]
        for name, said in zip(self.people, answers, strict=True):
            await self.say(name, "answered", after=0.05, asked=asked, said=said)
        return asked


def said_for(question: Prediction, place: int) -> object:
    return question.choices[place].value if question.typed else LETTERS[place]


async def predict(day: Day, question: Prediction) -> None:
    """Vote, talk, vote: most see it after the talk. One question is revealed after the first vote."""
    right = question.choices.index(question.right)
    wrong = [place for place, choice in enumerate(question.choices) if choice.believes]
    first = [day.chance.choice([right, *wrong]) for _ in day.people]
    if question.number in (SURVIVES, NOT_ASKED_AGAIN):
        first = [wrong[0]] * 5 + [right]
    asked = await day.ask(question, [said_for(question, place) for place in first])
    if question.number != NOT_ASKED_AGAIN:
        await day.served.act("discuss", asked=asked)
        second = [right] * 5 + [wrong[0]]
        if question.number == SURVIVES:
            second = [wrong[0]] * 3 + [right] * 3
        asked = await day.ask(question, [said_for(question, place) for place in second], "after")
    await day.served.act("reveal", asked=asked)
    await day.served.act("close", asked=asked)


async def teach(day: Day, item: Item) -> None:
    """A section: desks arrive; somebody may be nervous, and many are lost in one."""
    place = {"lesson": item.lesson, "section": item.title}
    for name in DESKS:
        await day.say(name, "reached", after=0.05, **place)
    for number in item.asks:
        await predict(day, predictions()[number])
    if item.title.startswith("5 · All-reduce"):  # one learner who is nervous, again and again
        for _ in range(6):
            await day.say("Dee", "stuck", on=True, **place)
            await day.say("Dee", "stuck", on=False, **place)
    if item.title == LOST_IN:
        await day.say("Eve", "wondered", text="Why not send each gradient at once?")
        (question,) = (await day.served.snapshot())["wonderings"]
        for name in ("Ada", "Cy"):
            await day.say(name, "seconded", question=question["question"], on=True)
        await day.say("Fay", "slower")
        await day.say("Ben", "stuck", on=True, **place)
        await day.look("lost")
        await day.served.act("lower", learner=day.people["Ben"].learner)


async def exercise(day: Day, heading: str) -> None:
    """Desks try: 00.1 is interrupted by the break, 02.2 is hard, the others are quick."""
    number = heading.split()[0]
    for name in DESKS:
        await day.say(name, "reached", after=0.1, lesson=number[:2], section=heading)
    tries = 4 if number == LONGEST else 2
    for turn in range(tries):
        for name in DESKS:
            passed = turn == tries - 1 and not (number == LONGEST and name == "Ben")
            result = {"passed": passed, "points": 0, "part": "", "mistake": "" if passed else MISTAKE}
            await day.say(name, "checked", after=0.4 if number == LONGEST else 0.1, number=number, **result)
        if number == "00.1" and turn == 0:
            day.now += 60 * (5 + BREAK)  # coffee, between a failed check and the next
    await day.look(number)


async def play(record: Path) -> Day:
    async with class_here(record) as served:
        day = Day(served, {name: await enter(served, name) for name in (*DESKS, *PHONES)})
        plan = find_plan("half_a_day")
        made = make_agenda(lessons_from(plan.lessons), days=1, begin=plan.begin, until=plan.until, exercise_minutes=20)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(room, "time", SimpleNamespace(time=lambda: day.now))
            for item in (slot.item for slot in made.days[0].slots):
                ends = day.now + 60 * item.minutes
                if item.kind == "exercise":
                    await exercise(day, item.title)
                elif item.kind == "section":
                    await teach(day, item)
                day.now = max(day.now, ends)
        return day


@pytest.fixture(scope="module")
def morning(tmp_path_factory) -> tuple[Day, History]:
    """The morning, and what its record tells afterwards."""
    record = tmp_path_factory.mktemp("class") / "class.db"
    day = asyncio.run(play(record))
    return day, read_history(record)


def test_what_to_say_tomorrow_is_what_was_true_of_the_morning(morning):
    belief, exercise, section = points(morning[1])
    question = predictions()[SURVIVES]
    assert belief.title == next(choice.believes for choice in question.choices if choice.believes)
    assert belief.seen.startswith(f"3 of 6 still believed this in {SURVIVES} (5 at first).")
    assert exercise.title.startswith(f"Exercise {LONGEST},")
    assert "3 of 4 passed" in exercise.seen
    assert exercise.say == f"The most frequent mistake: {MISTAKE}"
    assert section.title == f"02 · {LOST_IN}"
    assert section.seen.startswith("5 learners")
    assert "Why not send each gradient at once?" in section.say


def test_a_break_between_two_checks_is_not_work(morning):
    minutes = {each.exercise.number: each.middle for each in efforts(morning[1])}
    assert minutes["00.1"] < minutes[LONGEST] < 10


def test_who_fails_again_and_again_without_raising_a_hand_is_named_until_the_class_moves_on(morning):
    seen = morning[0].seen
    assert seen[LONGEST]["quiet"] == [{"name": "Ben", "number": LONGEST, "tries": 4}]
    assert seen["02.3"]["quiet"] == []
