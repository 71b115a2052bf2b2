"""What a desk sends, message by message: in order, never more than fits, and again if the class could not save it."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from course_lib.classroom import protocol
from course_lib.classroom.learner import channel
from course_lib.classroom.learner.channel import BATCH, Conversation
from course_lib.classroom.learner.class_file import Membership
from course_lib.classroom.learner.outbox import Outbox
from course_lib.classroom.server.record_file import read_events
from tests.classroom.serving import class_here, event_of


class Wire:
    """A connection that only remembers what was sent."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []  # the numbers of the events in each message
        self.closed = False

    async def write_message(self, message: str) -> None:
        assert len(message) < protocol.LARGEST_MESSAGE
        self.sent.append([event["number"] for event in json.loads(message)["events"]])

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _look_often(monkeypatch):
    monkeypatch.setattr(channel, "LOOK", 0.01)


@pytest.fixture
def outbox(desk):
    with Outbox.of(desk) as opened:
        yield opened


def talk(desk, outbox, scene) -> None:
    """Play a scene with a conversation and its wire."""

    async def whole() -> None:
        member = Membership("http://127.0.0.1:9", "ada", "secret", "A class")
        member.write(desk)
        talking, wire = Conversation(desk, member, outbox, threading.Event()), Wire()
        sending = asyncio.ensure_future(talking._send(wire))
        try:
            await scene(talking, wire)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    asyncio.run(whole())


def put(outbox: Outbox, count: int, **facts) -> list[str]:
    events = [event_of(kind="reached", number=number, **facts) for number in range(count)]
    for event in events:
        outbox.put("ada", event)
    return [event["id"] for event in events]


async def until(what) -> None:
    while not what():
        await asyncio.sleep(0.01)


def test_thousands_are_sent_one_message_at_a_time_and_in_order(desk, outbox):
    ids = put(outbox, 1000)

    async def scene(talking, wire):
        for message in range(1000 // BATCH):
            await until(lambda message=message: len(wire.sent) > message)
            await asyncio.sleep(0)
            assert len(wire.sent) == message + 1  # the next waits for the answer
            talking._hear(json.dumps({"kept": ids[message * BATCH : (message + 1) * BATCH]}))
        assert [number for some in wire.sent for number in some] == list(range(1000))
        assert outbox.count("ada") == 0

    talk(desk, outbox, scene)


def test_the_next_connection_begins_with_the_oldest_that_was_not_acknowledged(desk, outbox):
    ids = put(outbox, 3 * BATCH)

    async def broken_off(talking, wire):
        await until(lambda: wire.sent)
        talking._hear(json.dumps({"kept": ids[:7]}))
        with Outbox.of(desk) as of_another_kernel:
            put(of_another_kernel, 1)
        await asyncio.sleep(0.1)
        assert len(wire.sent) == 1

    async def the_next(talking, wire):
        await until(lambda: wire.sent)
        assert wire.sent == [list(range(7, 7 + BATCH))]

    talk(desk, outbox, broken_off)
    talk(desk, outbox, the_next)


def test_a_class_that_never_answers_is_hung_up_on(desk, outbox, monkeypatch):
    monkeypatch.setattr(channel, "ANSWER", 0.1)
    put(outbox, 1)

    async def scene(_, wire):
        await until(lambda: wire.closed)
        assert len(wire.sent) == 1

    talk(desk, outbox, scene)


def test_what_a_class_in_trouble_does_not_take_is_kept_and_sent_when_that_is_over(desk, outbox):
    ids = put(outbox, 3)

    async def scene(talking, wire):
        await until(lambda: wire.sent)
        talking._hear(json.dumps({"state": {"trouble": "it cannot save anything now"}}))
        await asyncio.sleep(0.1)
        assert (len(wire.sent), outbox.count("ada")) == (1, 3)
        assert outbox.news("ada")["state"]["trouble"] == "it cannot save anything now"
        talking._hear(json.dumps({"state": {"trouble": ""}}))
        await until(lambda: len(wire.sent) == 2)
        assert wire.sent[1] == [0, 1, 2]
        talking._hear(json.dumps({"kept": ids}))
        assert outbox.count("ada") == 0

    talk(desk, outbox, scene)


def test_large_cells_go_in_messages_that_the_class_takes_and_one_that_is_too_large_is_refused_here(desk, outbox):
    put(outbox, 12, source="\u00e9" * protocol.LONGEST_SOURCE)  # six characters each on the way
    outbox.put("ada", event_of(kind="showed", number=12, source="x" * protocol.LARGEST_MESSAGE))
    put(outbox, 1)

    async def scene(talking, wire):
        while outbox.count("ada"):
            await until(lambda: talking._sent or not outbox.count("ada"))
            talking._hear(json.dumps({"kept": sorted(talking._sent)}))
            await asyncio.sleep(0)
        assert [number for some in wire.sent for number in some] == [*range(12), 0]
        assert len(wire.sent) > 5
        assert "too large" in outbox.news("ada")["refused"]["why"]

    talk(desk, outbox, scene)


def test_a_desk_and_a_class_agree_on_order_when_the_connection_breaks_while_the_desk_is_slowed_down(
    desk, tmp_path, monkeypatch
):
    monkeypatch.setattr(protocol, "BURST", 100)
    monkeypatch.setattr(protocol, "EVENTS_A_SECOND", 400)

    async def whole():
        async with class_here(tmp_path / "class.db") as served:
            _, joined = await served.join("Ada")
            member = Membership(served.url, joined["learner"], joined["secret"], "A class")
            member.write(desk)
            with Outbox.of(desk) as outbox:
                sent = [event_of(kind="slower") for _ in range(600)]
                for event in sent:
                    outbox.put(member.learner, event)
                while count := outbox.count(member.learner):
                    talking = asyncio.ensure_future(Conversation(desk, member, outbox, threading.Event()).hold())
                    await until(lambda count=count: outbox.count(member.learner) <= max(0, count - 150))
                    for open_ in list(served.settings["channels"]._of.get(member.learner, ())):
                        open_.drop()
                    await talking
            return [event["id"] for event in sent]

    sent = asyncio.run(whole())
    assert [event["id"] for learner, event in read_events(tmp_path / "class.db") if learner] == sent
