"""`course class` is killed, started again and stopped: what was acknowledged is there, and everybody comes back."""

from __future__ import annotations

import asyncio
import json
import signal
from urllib.parse import urlsplit

from course_lib.classroom.server.record_file import read_events
from tests.classroom.serving import class_in_a_process, come_back, end, enter, event_of

LEARNERS = 10
KILL_AFTER = 500  # acknowledgements, in the middle of more


async def send_until_the_end(learner) -> None:
    """As fast as it goes, never waiting for an acknowledgement."""
    while learner.channel.close_code is None and not learner.channel.protocol.stream.closed():
        learner.channel.write_message(json.dumps({"events": [event_of(kind="slower")]}))
        await asyncio.sleep(0)


async def hear_until_the_end(learner) -> None:
    while await learner.hear() is not None:
        pass


async def kill_in_the_middle(served):
    """The learners of a class that is killed while they send."""
    await served.log_in()
    asked = (await served.act("ask", number="00.1", round="before"))["asked"]
    learners = [await enter(served) for _ in range(LEARNERS)]
    assert await learners[0].say(kind="answered", asked=asked, said="b") == ""
    sending = [asyncio.ensure_future(send_until_the_end(learner)) for learner in learners]
    hearing = [asyncio.ensure_future(hear_until_the_end(learner)) for learner in learners]
    while sum(len(learner.kept) for learner in learners) < KILL_AFTER:
        await asyncio.sleep(0.001)
    end(served, signal.SIGKILL)
    await asyncio.gather(*hearing)
    for task in sending:
        task.cancel()
    return learners


async def find_everything_again(served, learners, cookie) -> None:
    """With the secrets and the cookie of before."""
    again = await come_back(served, learners[0].learner, learners[0].secret)
    assert (again.state["asked"]["open"], again.state["asked"]["said"]) == (True, "b")
    served.cookie = cookie
    shown = await served.snapshot()
    assert (shown["learners"], shown["slower"]) == (LEARNERS, LEARNERS)


def test_a_killed_class_has_all_that_it_acknowledged_and_goes_on_where_it_was(tmp_path):
    record = tmp_path / "class.db"
    with class_in_a_process(record) as served:
        learners = asyncio.run(kill_in_the_middle(served))
    recorded: dict[str, set[str]] = {}
    for learner, event in read_events(record):
        recorded.setdefault(learner, set()).add(event["id"])
    assert sum(len(learner.kept) for learner in learners) >= KILL_AFTER
    assert all(learner.kept <= recorded[learner.learner] for learner in learners)

    with class_in_a_process(record, port=urlsplit(served.url).port or 0) as again:
        assert again.code == served.code
        asyncio.run(find_everything_again(again, learners, served.cookie))
        assert end(again, signal.SIGTERM) == 0
