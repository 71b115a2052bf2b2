"""Somebody who does not read, or is not there any more, costs the class nothing and is let go."""

from __future__ import annotations

import asyncio

import pytest

from course_lib.classroom.server import instructor, learners
from tests.classroom.serving import enter
from tests.conftest import PATIENCE

pytestmark = pytest.mark.anyio


async def test_two_hundred_are_asked_at_once_and_all_answers_are_counted(served):
    everybody = await asyncio.gather(*(enter(served) for _ in range(200)))
    asked = (await served.act("ask", number="00.1", round="before"))["asked"]

    async def answer(learner, said):
        await learner.wait_for(lambda state: state["asked"])
        assert await learner.say(kind="answered", asked=asked, said=said) == ""

    await asyncio.gather(*(answer(learner, "abc"[place % 3]) for place, learner in enumerate(everybody)))
    await served.act("reveal", asked=asked)
    await asyncio.gather(*(one.wait_for(lambda state: state["asked"]["revealed"]) for one in everybody))
    assert {tuple(one.state["asked"]["revealed"]["counts"]) for one in everybody} == {(67, 67, 66)}


async def test_who_does_not_read_holds_up_nobody_and_is_dropped(served, monkeypatch):
    monkeypatch.setattr(learners, "SLOWEST_READER", 0.0)
    sent: list[int] = []
    deaf, ada = await enter(served), await enter(served)
    (channel,) = served.settings["channels"]._of[deaf.learner]
    never = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(channel, "write_message", lambda message: sent.append(len(message)) or never)
    for _ in range(20):
        await served.act("ask", number="00.1", round="before")
    channel._acknowledge(["0" * 32], {})
    assert len(sent) == 1  # the rest waits, and of the state only the newest
    assert await ada.say(kind="slower") == ""
    served.settings["channels"].drop_who_does_not_read()
    while served.room.here[deaf.learner]:
        await asyncio.sleep(0.01)
    assert await ada.say(kind="slower") == ""


async def test_who_reads_again_gets_the_newest_state_and_every_acknowledgement(served):
    ada = await enter(served)
    (channel,) = served.settings["channels"]._of[ada.learner]
    channel.waits_since = 1.0  # something is on its way
    ids = [identity for _ in range(3) for identity in await ada.send({"kind": "slower"})]
    for number in ("00.1", "00.2", "00.3"):
        await served.act("ask", number=number, round="before")
    while len(channel._kept) < len(ids):
        await asyncio.sleep(0.01)
    done = asyncio.get_running_loop().create_future()
    done.set_result(None)
    channel._sent(done)
    heard = await ada.hear()
    assert (sorted(heard["kept"]), heard["state"]["asked"]["number"]) == (sorted(ids), "00.3")


async def test_many_changes_make_few_snapshots(served, monkeypatch):
    changes = served.settings["changes"]
    monkeypatch.setattr(instructor, "CHANGES_EVERY", 3600.0)
    changes.after_the_next()
    changes._tell()  # one was sent just now
    changed = changes.after_the_next()
    for _ in range(100):
        changes.note()
    await asyncio.sleep(0.05)  # the next is due in an hour
    assert not changed.done()
    changes._tell()
    assert changed.done()


async def test_a_page_that_follows_is_told_of_a_change(served):
    ada = await enter(served)
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 22)
    writer.write(f"GET /view/changes HTTP/1.1\r\nHost: {host}\r\nCookie: {served.cookie}\r\n\r\n".encode())
    await asyncio.wait_for(reader.readuntil(b'"slower": 0'), PATIENCE)
    assert await ada.say(kind="slower") == ""
    await asyncio.wait_for(reader.readuntil(b'"slower": 1'), PATIENCE)
    writer.close()
