"""The learners' doors: joining with a code, and the channel that each has then."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from tornado import gen
from tornado.util import TimeoutError
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from course_lib.classroom import protocol
from course_lib.classroom.members import Learner, TooManyTries, WrongCode
from course_lib.classroom.protocol import Refused
from course_lib.classroom.room import Room
from course_lib.classroom.server.guards import Guarded, is_same_origin, refuse_strangers

SLOWEST_READER = timedelta(seconds=10)  # who has not read for so long is dropped, and comes back when awake
COME_BACK_LATER = 1013
SLOWED = f"more than {protocol.EVENTS_A_SECOND} events a second: what you send is taken at that pace"


class Join(Guarded):
    """`POST /join` with the code of the class and a name: a secret of one's own."""

    def check_xsrf_cookie(self) -> None:
        """A code is in the body, or a token in the header: no cookie counts here."""

    async def post(self) -> None:
        try:
            learner, secret = await self._let_in()
        except TooManyTries as error:
            self.refuse(429, str(error))
        except WrongCode as error:
            self.refuse(403, str(error))
        except Refused as error:
            self.refuse(400, str(error))
        else:
            joined = {"learner": learner.learner, "secret": secret, "class": self.room.title, "name": learner.name}
            self.finish(joined)

    async def _let_in(self) -> tuple[Learner, str]:
        return await self.settings["login"].let_in(self)


class Channels:
    """The open channels of a class. What is to be sent waits in each, and only the newest state."""

    def __init__(self, room: Room) -> None:
        self._room, self._of = room, dict[str, set[Channel]]()

    def add(self, channel: Channel) -> bool:
        """Whether there is room for one more of this learner."""
        own = self._of.setdefault(channel.learner, set())
        if len(own) >= protocol.MOST_CHANNELS:
            return False
        own.add(channel)
        self._room.here[channel.learner] += 1
        return True

    def remove(self, channel: Channel) -> None:
        own = self._of.get(channel.learner, set())
        if channel in own:
            own.remove(channel)
            self._room.here[channel.learner] -= 1

    def tell(self, learners: Iterable[str] | None) -> None:
        """Have the state of these learners sent; of all, if it is None."""
        for learner in list(self._of) if learners is None else learners:
            for channel in self._of.get(learner, ()):
                channel.tell_state()


class Channel(WebSocketHandler):
    """`/channel`: a learner's events come in, what is kept and what the class is asked goes out.

    One task sends; it waits until the other side has taken what was sent. Meanwhile acknowledgements add up, as many
    as the learner may have on the way, and of the state only that it has changed.
    """

    learner = ""
    room: Room
    channels: Channels

    def initialize(self) -> None:
        self.room, self.channels = self.settings["room"], self.settings["channels"]
        self._kept: list[str] = []
        self._refused: dict[str, str] = {}
        self._slowed = self._state_is_new = False
        self._something = asyncio.Event()
        self._allowance, self._allowed_at = float(protocol.BURST), time.monotonic()

    def prepare(self) -> None:
        refuse_strangers(self.request, self.settings["host_names"])

    def check_origin(self, origin: str) -> bool:
        """A browser's page of our own, or no browser at all: who holds a secret is no page of another site."""
        return is_same_origin(origin, self.request)

    def open(self, *_args: str, **_kwargs: str) -> None:
        scheme, _, secret = self.request.headers.get("Authorization", "").partition(" ")
        learner = self.room.members.of_secret(secret) if scheme == "Bearer" else None
        if learner is None:
            self.close(protocol.UNKNOWN_SECRET, "this secret is not of this class: join again")
            return
        self.learner = learner.learner
        if not self.channels.add(self):
            self.learner = ""
            self.close(COME_BACK_LATER, "too many channels of one learner")
            return
        self.set_nodelay(True)
        self.room.changed(())
        self.tell_state()
        self._sending = asyncio.ensure_future(self._send())

    async def on_message(self, message: str | bytes) -> None:
        """The next message is read when this is done: who sends too fast waits here."""
        events = _events(message)
        if not self.learner or events is None:
            self.close(1007, 'send {"events": [...]}')
            return
        await self._at_a_pace(len(events))
        kept: list[str] = []
        found, refused = self.room.take(self.learner, events, lambda: self._acknowledge(kept, refused))
        kept += found

    def tell_state(self) -> None:
        """Have the state sent, as it is when its turn comes."""
        self._state_is_new = True
        self._something.set()

    def on_close(self) -> None:
        if self.learner:
            self.channels.remove(self)
            self.room.changed(())
            self._something.set()

    def _acknowledge(self, kept: list[str], refused: dict[str, str]) -> None:
        self._kept += kept
        self._refused.update(refused)
        self._something.set()

    async def _at_a_pace(self, events: int) -> None:
        now = time.monotonic()
        earned = (now - self._allowed_at) * protocol.EVENTS_A_SECOND
        self._allowance, self._allowed_at = min(self._allowance + earned, float(protocol.BURST)) - events, now
        if self._allowance < 0:
            self._slowed = True
            self._something.set()
            await asyncio.sleep(-self._allowance / protocol.EVENTS_A_SECOND)

    async def _send(self) -> None:
        try:
            while self.ws_connection is not None:
                await self._something.wait()
                self._something.clear()
                for message in self._messages():
                    await gen.with_timeout(SLOWEST_READER, self.write_message(message), quiet_exceptions=Exception)
        except (TimeoutError, WebSocketClosedError):
            self._drop()

    def _messages(self) -> list[str]:
        messages: list[dict[str, Any]] = []
        if self._kept:
            messages.append({"kept": self._kept})
        if self._refused:
            messages.append({"refused": self._refused})
        if self._slowed:
            messages.append({"slowed": SLOWED})
        if self._state_is_new:
            messages.append({"state": self.room.state(self.learner)})
        self._kept, self._refused, self._slowed, self._state_is_new = [], {}, False, False
        return [json.dumps(message) for message in messages]

    def _drop(self) -> None:
        """At once: a closing handshake would wait for somebody who does not read."""
        if self.ws_connection is not None:
            self.ws_connection.stream.close()  # pyright: ignore


def _events(message: str | bytes) -> list[Any] | None:
    try:
        events = json.loads(message).get("events")
    except (ValueError, AttributeError, RecursionError):
        return None
    return events if isinstance(events, list) and len(events) <= protocol.MOST_IN_A_MESSAGE else None
