"""What somebody who knows the code cannot do: keep others out, slow them down, or use up their room."""

from __future__ import annotations

import asyncio
import itertools
import json
from types import SimpleNamespace

import pytest

from course_lib.classroom import protocol
from course_lib.classroom.server import guards, instructor, learners
from course_lib.classroom.server.record_file import read
from tests.classroom.serving import ask, come_back, enter, event_of, raw
from tests.conftest import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("active", [False, True])
def test_joining_again_and_again_does_not_fill_the_class(in_class, monkeypatch, tmp_path, active):
    monkeypatch.setattr(protocol, "MOST_LEARNERS", 6)

    async def scene(served):
        ada, ben = await enter(served, "Ada"), await enter(served, "Ben")
        for _ in range(3):
            await ben.say(kind="slower")
        ben.channel.close()  # for lunch
        for place in range(20):
            status, joined = await served.join(f"Mallory {place}")
            assert status == 200
            if active:
                mallory = await come_back(served, joined["learner"], joined["secret"])
                await mallory.say(kind="slower")
                mallory.channel.close()
                while served.room.here[mallory.learner]:
                    await asyncio.sleep(0.01)
        eve = await enter(served, "Eve")
        assert await eve.say(kind="slower") == ""
        assert await ada.say(kind="slower") == ""
        assert await (await come_back(served, ben.learner, ben.secret)).say(kind="slower") == ""
        assert (await served.snapshot())["learners"] == 6

    in_class(scene)
    names = {name for (name,) in read(tmp_path / "class.db", "SELECT name FROM learners")}
    assert {"Ada", "Ben", "Eve"} <= names
    assert len(names) == (23 if active else 6)  # whoever has sent something stays in the record

    async def again(served):
        assert len(served.room.members) == 6

    in_class(again)


async def test_opening_channels_does_not_keep_others_from_the_class(served, monkeypatch):
    monkeypatch.setattr(protocol, "MOST_CHANNELS_IN_ALL", 4)
    ada = await enter(served, "Ada")
    await ada.say(kind="slower")
    many = [await enter(served) for _ in range(8)]
    assert await ada.say(kind="slower") == ""
    eve = await enter(served, "Eve")
    assert await eve.say(kind="slower") == ""
    while sum(served.room.here.values()) > 4:
        await asyncio.sleep(0.01)
    assert sum(served.room.here[one.learner] for one in many) == 2


@pytest.mark.parametrize(
    ("sent", "tls"),
    [
        (b"", False),
        (b"", True),
        (b"POST /join HTTP/1.1\r\nHost: 127.0.0.1\r\n", False),
        (b"POST /join HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{", False),
    ],
)
def test_who_sends_nothing_or_a_half_does_not_keep_the_connection(in_class, monkeypatch, sent, tls):
    monkeypatch.setattr(guards, "IDLE", 0.2)
    monkeypatch.setattr(guards, "SLOWEST_BODY", 0.2)

    async def scene(served):
        reader, writer = await raw(served)
        writer.write(sent)
        await asyncio.wait_for(reader.read(), PATIENCE)  # returns at the end of the connection
        writer.close()

    in_class(scene, tls=tls)


async def test_silent_connections_are_few_and_the_oldest_of_them_makes_room(served, monkeypatch):
    monkeypatch.setattr(guards, "MOST_UNKNOWN", 5)
    ada = await enter(served, "Ada")
    silent = [await raw(served) for _ in range(20)]
    for reader, _ in silent[:10]:
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
    assert await ada.say(kind="slower") == ""
    eve = await enter(served, "Eve")
    assert await eve.say(kind="slower") == ""
    for _, writer in silent:
        writer.close()


async def test_large_cells_are_slowed_down_on_whatever_channel_and_nobody_else_is(served, monkeypatch):
    monkeypatch.setattr(protocol, "BURST_OF_BYTES", 30_000)
    monkeypatch.setattr(learners, "time", SimpleNamespace(monotonic=lambda: 1000.0))  # a slow machine earns nothing
    cell = {"kind": "showed", "source": "x" * 8000}
    mallory, ada = await enter(served, "Mallory"), await enter(served, "Ada")
    await mallory.send(cell, cell, cell)
    again = await come_back(served, mallory.learner, mallory.secret)
    sent = await again.send(cell)
    while not any("slowed" in told for told in again.told):
        await again.hear()
    assert await ada.say(kind="slower") == ""
    assert not any("slowed" in told for told in ada.told)
    while not again.kept >= set(sent):
        await again.hear()


async def test_what_was_sent_before_is_not_looked_at_again(served, monkeypatch):
    cleaned, clean = [], protocol.clean
    monkeypatch.setattr(protocol, "clean", lambda *given: cleaned.append(given) or clean(*given))
    mallory = await enter(served)
    cell = event_of(kind="showed", source="x" * 9000)
    for _ in range(5):
        mallory.kept.clear()
        assert await mallory.say(**cell) == ""
    assert len(cleaned) == 1


async def test_a_cell_that_is_shown_again_is_news_to_its_learner_alone(served):
    mallory, ada = await enter(served), await enter(served)
    for one in (ada, mallory):
        await one.say(kind="stuck", on=True)
    await ada.wait_for(lambda state: state["line"] == 1)
    told: list[object] = []
    changed = served.room.changed
    served.room.changed = lambda learners: told.append(learners) or changed(learners)
    await mallory.say(kind="showed", source="x")
    assert told == [{mallory.learner}]


async def test_many_identities_leave_room_in_the_record_for_everyone(served, monkeypatch):
    monkeypatch.setattr(protocol, "MOST_BYTES", 2000)
    monkeypatch.setattr(protocol, "MOST_BYTES_IN_ALL", 16_000)
    monkeypatch.setattr(protocol, "MOST_LEARNERS", 20)
    for _ in range(10):
        mallory = await enter(served)
        while not await mallory.say(kind="slower"):
            pass
    ada = await enter(served, "Ada")
    assert [await ada.say(kind="slower") for _ in range(3)] == [""] * 3
    monkeypatch.setattr(protocol, "MOST_LEARNERS", 100)
    refusals = [await (await enter(served)).say(kind="checked", number="02.1", mistake="x" * 600) for _ in range(20)]
    assert (refusals[0], "record is full" in refusals[-1]) == ("", True)


async def test_a_large_snapshot_is_made_less_often(served, monkeypatch):
    monkeypatch.setattr(instructor, "PAUSE", 1e9)
    changes = served.settings["changes"]
    changes.snapshot()
    changes.after_the_next()
    changes._tell()
    changed = changes.after_the_next()
    changes.note()
    assert changes._waking.when() > asyncio.get_running_loop().time() + 1000
    assert not changed.done()


NUMBERS = (None, True, 0, 12345678901234567890123456789012, -1.5, 1e400)
VALUES = (*NUMBERS, "", "00.1", "a" * 32, "\ud800", [], [[]], {}, {"a": []})
FIELDS = [
    "id",
    "kind",
    "number",
    "said",
    "asked",
    "part",
    "points",
    "passed",
    "on",
    "lesson",
    "section",
    "source",
    "at",
]


@pytest.mark.slow
async def test_no_event_whatever_it_holds_ends_a_channel_or_keeps_others_of_its_message_out(served):
    kinds = [*protocol.KINDS, "ask"]
    events = [
        event_of(**{"kind": kind, "number": "00.1", "said": "a", "source": "x", field: value})
        for kind, field, value in itertools.product(kinds, FIELDS, VALUES)
    ]
    ada = await enter(served)
    for first in range(0, len(events), 400):
        good = event_of(kind="slower")
        await ada.channel.write_message(json.dumps({"events": [*events[first : first + 400], 7, None, good]}))
        while good["id"] not in ada.kept:
            assert await ada.hear() is not None
    assert (await ask(f"{served.url}/view/state", headers={"Cookie": served.cookie})).code == 200
    known = {event["id"] for event in events if isinstance(event["id"], str) and len(event["id"]) == 32}
    assert known <= ada.kept | set(ada.refused)
    assert "an event needs an id" in ada.refused[""]
