"""The learners' request handlers: joining with a code, and the WebSocket channel."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Iterable
from typing import Any

from tornado.websocket import WebSocketClosedError, WebSocketHandler

from course_lib.classroom import protocol
from course_lib.classroom.protocol import Refused
from course_lib.classroom.server.guards import Guarded, is_same_origin, refuse_strangers
from course_lib.classroom.server.members import Learner, TooManyTries, WrongCode
from course_lib.classroom.server.room import Room

SLOWEST_READER = 60.0  # seconds until we drop a learner who does not read; the client reconnects
COME_BACK_LATER = 1013
SLOWED = f"more than {protocol.EVENTS_A_SECOND} events a second: what you send is accepted at that rate"


class Join(Guarded):
    """`POST /join` with the class's code and a name: returns a secret for this learner."""

    def check_xsrf_cookie(self) -> None:
        """Skip the check: joining uses a code or a token, never a cookie."""

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
    """The open channels of a class. Each channel queues what it has to send, and only the newest state."""

    def __init__(self, room: Room) -> None:
        self._room, self._of = room, dict[str, set[Channel]]()

    def add(self, channel: Channel) -> bool:
        """Add a channel. Returns False if this learner has too many."""
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

    def drop_who_does_not_read(self) -> None:
        """Drop channels that have not read for `SLOWEST_READER` seconds. Called periodically."""
        for channel in [channel for own in self._of.values() for channel in own]:
            if channel.waits_since and time.monotonic() - channel.waits_since > SLOWEST_READER:
                channel.drop()

    def tell(self, learners: Iterable[str] | None) -> None:
        """Send their state to these learners, or to all if None."""
        for learner in list(self._of) if learners is None else learners:
            for channel in self._of.get(learner, ()):
                channel.tell_state()


class Channel(WebSocketHandler):
    """`/channel`: receives a learner's events, and sends acknowledgements and the state of the class.

    One message is in flight at a time. Meanwhile, we collect acknowledgements, at most as many as the learner may have
    sent events, and remember only that the state has changed.
    """

    learner = ""
    waits_since = 0.0  # when the message in flight was sent
    room: Room
    channels: Channels

    def initialize(self) -> None:
        self.room, self.channels = self.settings["room"], self.settings["channels"]
        self._kept: list[str] = []
        self._refused: dict[str, str] = {}
        self._slowed = self._state_is_new = False
        self._allowance, self._allowed_at = float(protocol.BURST), time.monotonic()

    def prepare(self) -> None:
        refuse_strangers(self.request, self.settings["host_names"])

    def check_origin(self, origin: str) -> bool:
        """Accept only our own pages. Clients that are not browsers send no Origin."""
        return is_same_origin(origin, self.request)

    def open(self, *_args: str, **_kwargs: str) -> None:
        scheme, _, secret = self.request.headers.get("Authorization", "").partition(" ")
        learner = self.room.members.of_secret(secret) if scheme == "Bearer" else None
        if learner is None:
            self.close(protocol.UNKNOWN_SECRET, "this class does not know your secret: join again")
            return
        self.learner = learner.learner
        if not self.channels.add(self):
            self.learner = ""
            self.close(COME_BACK_LATER, "this learner has too many channels")
            return
        self.set_nodelay(True)
        self.room.changed(())
        self.tell_state()

    def on_message(self, message: str | bytes) -> Awaitable[None] | None:
        """Accept the events, now or after the rate limit allows it. The next message is read after this one is done."""
        events = _events(message)
        if not self.learner or events is None:
            self.close(1007, 'send {"events": [...]}')
            return None
        wait = self._too_early_by(len(events))
        if wait > 0:
            return self._take_later(events, wait)
        self._take(events)
        return None

    async def _take_later(self, events: list[Any], wait: float) -> None:
        self._slowed = True
        self._send()
        await asyncio.sleep(wait)
        self._take(events)

    def _take(self, events: list[Any]) -> None:
        kept: list[str] = []
        found, refused = self.room.take(self.learner, events, lambda: self._acknowledge(kept, refused))
        kept += found

    def tell_state(self) -> None:
        """Send the state, as it is when the message goes out."""
        self._state_is_new = True
        self._send()

    def on_close(self) -> None:
        if self.learner:
            self.channels.remove(self)
            self.room.changed(())

    def _acknowledge(self, kept: list[str], refused: dict[str, str]) -> None:
        self._kept += kept
        self._refused.update(refused)
        self._send()

    def _too_early_by(self, events: int) -> float:
        """Return by how many seconds these events exceed the rate limit; negative or zero if they do not."""
        now = time.monotonic()
        earned = (now - self._allowed_at) * protocol.EVENTS_A_SECOND
        self._allowance, self._allowed_at = min(self._allowance + earned, float(protocol.BURST)) - events, now
        return -self._allowance / protocol.EVENTS_A_SECOND

    def _send(self) -> None:
        """Send what is pending, unless a message is in flight; then it is sent afterwards."""
        if self.waits_since or self.ws_connection is None:
            return
        message = self._message()
        if message:
            self.waits_since = time.monotonic()
            with contextlib.suppress(WebSocketClosedError):
                self.write_message(json.dumps(message)).add_done_callback(self._sent)

    def _sent(self, written: asyncio.Future[None]) -> None:
        self.waits_since = 0.0
        if written.exception() is None:
            self._send()

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {}
        if self._kept:
            message["kept"] = self._kept
        if self._refused:
            message["refused"] = self._refused
        if self._slowed:
            message["slowed"] = SLOWED
        if self._state_is_new:
            message["state"] = self.room.state(self.learner)
        self._kept, self._refused, self._slowed, self._state_is_new = [], {}, False, False
        return message

    def drop(self) -> None:
        """Close without a handshake, which would wait for a client that does not read."""
        if self.ws_connection is not None:
            self.ws_connection.stream.close()  # pyright: ignore


def _events(message: str | bytes) -> list[Any] | None:
    try:
        events = json.loads(message).get("events")
    except (ValueError, AttributeError, RecursionError):
        return None
    return events if isinstance(events, list) and len(events) <= protocol.MOST_IN_A_MESSAGE else None
