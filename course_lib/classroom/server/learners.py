"""The learners' request handlers: joining with a code, and the WebSocket channel."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Iterable
from typing import Any

from tornado.websocket import WebSocketClosedError, WebSocketHandler

from course_lib.classroom import protocol
from course_lib.classroom.protocol import Refused
from course_lib.classroom.server.addresses import qr_code
from course_lib.classroom.server.guards import A_WEEK, Guarded, Quiet, is_same_origin, refuse_strangers, trust
from course_lib.classroom.server.members import Learner, TooManyTries, WrongCode
from course_lib.classroom.server.room import NotSaved, Room

SOON = 0.5  # seconds until everyone receives what other learners do
SLOWEST_READER = 60.0  # seconds until we drop a learner who does not read; the client reconnects
COME_BACK_LATER = 1013
SLOWED = (
    f"more than {protocol.EVENTS_A_SECOND} events or {protocol.BYTES_A_SECOND >> 10} KiB a second: what you send is "
    "accepted at that rate"
)


class Join(Guarded):
    """`POST /join` with the class's code and a name: returns a secret for this learner.

    Our own pages get it as a cookie, which no script can read; `DELETE` removes the cookie.
    """

    def check_xsrf_cookie(self) -> None:
        """Skip the check: joining uses a code or a token, never a cookie."""

    async def post(self) -> None:
        try:
            learner, secret = await self._let_in()
        except TooManyTries as error:
            self.refuse(429, str(error))
        except WrongCode as error:
            self.refuse(403, str(error))
        except NotSaved as error:
            self.refuse(503, f"nobody can join at the moment: {error}; try again later")
        except Refused as error:
            self.refuse(400, str(error))
        else:
            joined = {"learner": learner.learner, "secret": secret, "class": self.room.title, "name": learner.name}
            if "page" in self.request.arguments:
                self._set_cookie(joined.pop("secret"))
            self.finish(joined)

    def delete(self) -> None:
        self._set_cookie("")
        self.finish({})

    def _set_cookie(self, secret: str) -> None:
        self.set_cookie(
            self.settings["learner_cookie"],
            secret,
            expires_days=A_WEEK if secret else -1,
            path=self.settings["prefix"] or "/",
            httponly=True,
            samesite="Strict",
            secure=self.request.protocol == "https",
        )

    async def _let_in(self) -> tuple[Learner, str]:
        return await self.settings["login"].let_in(self)


class Link(Guarded):
    """`POST /link` from a learner's page: returns how this learner's desk and phone join as the same learner."""

    def post(self) -> None:
        room, address = self.room, self.settings["address"]
        secret = self.get_cookie(self.settings["learner_cookie"], "") or ""
        learner = room.members.of_secret(secret)
        if learner is None:
            return self.refuse(403, "this class does not know you: join it first")
        desk, phone = room.members.new_link(secret), room.members.new_link(secret)
        page = address.with_code(phone, "me")
        self.finish(
            {"line": f"course lab --class {address.learners} --code {desk}", "phone": page, "qr": qr_code(page)}
        )


class Allowance:
    """How many events and bytes a learner may send now, over all channels: a burst, then a fixed rate."""

    def __init__(self) -> None:
        self._events, self._bytes, self._since = float(protocol.BURST), float(protocol.BURST_OF_BYTES), time.monotonic()

    def spend(self, events: int, size: int) -> float:
        """Count a message. Returns how many seconds it has to wait; zero or less if it may go now."""
        now = time.monotonic()
        passed, self._since = now - self._since, now
        self._events = min(self._events + passed * protocol.EVENTS_A_SECOND, float(protocol.BURST)) - events
        self._bytes = min(self._bytes + passed * protocol.BYTES_A_SECOND, float(protocol.BURST_OF_BYTES)) - size
        return max(-self._events / protocol.EVENTS_A_SECOND, -self._bytes / protocol.BYTES_A_SECOND)


class Channels:
    """The open channels of a class. Each channel queues its acknowledgements, and only the newest state."""

    def __init__(self, room: Room) -> None:
        self._room, self._of = room, dict[str, set[Channel]]()
        self._allowances: dict[str, Allowance] = defaultdict(Allowance)
        self._telling: asyncio.TimerHandle | None = None

    def add(self, channel: Channel) -> bool:
        """Add a channel. Returns False if this learner has too many."""
        own = self._of.setdefault(channel.learner, set())
        if len(own) >= protocol.MOST_CHANNELS:
            return False
        own.add(channel)
        self._room.here[channel.learner] += 1
        if self._room.here.total() > protocol.MOST_CHANNELS_IN_ALL:
            others = [learner for learner, open_ in self._of.items() if open_ and learner != channel.learner]
            for one in list(self._of[min(others, key=self._room.events_of)]):
                one.drop()
        return True

    def remove(self, channel: Channel) -> None:
        own = self._of.get(channel.learner, set())
        if channel in own:
            own.remove(channel)
            self._room.here[channel.learner] -= 1
            if not own:
                del self._of[channel.learner]  # learners who come back are last in line
                del self._room.here[channel.learner]

    def allowance(self, learner: str) -> Allowance:
        """Return what a learner may send; a new channel does not renew it."""
        return self._allowances[learner]

    def drop_who_does_not_read(self) -> None:
        """Drop channels that have not read for `SLOWEST_READER` seconds. Called periodically."""
        for channel in [channel for own in self._of.values() for channel in own]:
            if channel.waits_since and time.monotonic() - channel.waits_since > SLOWEST_READER:
                channel.drop()

    def tell_everyone_soon(self) -> None:
        """Send everyone their state, once for all changes within half a second, to limit how much we send."""
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(SOON, self._tell_everyone)

    def _tell_everyone(self) -> None:
        self._telling = None
        self.tell(None)

    def tell(self, learners: Iterable[str] | None) -> None:
        """Send their state to these learners, or to all if None."""
        for learner in list(self._of) if learners is None else learners:
            for channel in list(self._of.get(learner, ())):
                channel.tell_state()


class Channel(Quiet, WebSocketHandler):
    """`/channel`: receives a learner's events, and sends acknowledgements and the state of the class.

    Only one message is in flight at a time. Meanwhile, we collect acknowledgements (the limit on events bounds their
    number) and remember only that the state has changed.
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

    def prepare(self) -> None:
        refuse_strangers(self.request, self.settings["host_names"])

    def check_origin(self, origin: str) -> bool:
        """Accept only our own pages. Clients that are not browsers send no Origin."""
        return is_same_origin(origin, self.request)

    def open(self, *_args: str, **_kwargs: str) -> None:
        learner = self.room.members.of_secret(self._secret())
        if learner is None:
            self.close(protocol.UNKNOWN_SECRET, "this class does not know your secret: join again")
            return
        self.learner = learner.learner
        if not self.channels.add(self):
            self.learner = ""
            self.close(COME_BACK_LATER, "this learner has too many channels")
            return
        trust(self.ws_connection.stream)  # pyright: ignore
        self.set_nodelay(True)
        self.room.changed(())
        self.tell_state()

    def _secret(self) -> str:
        scheme, _, secret = self.request.headers.get("Authorization", "").partition(" ")
        if scheme:
            return secret if scheme == "Bearer" else ""
        return self.get_cookie(self.settings["learner_cookie"], "") or ""  # only our own pages: see `check_origin`

    def on_message(self, message: str | bytes) -> Awaitable[None] | None:
        """Accept the events, now or after the rate limit allows it. The next message is read after this one is done."""
        events = _events(message)
        if not self.learner or events is None:
            self.close(1007, 'send {"events": [...]}')
            return None
        wait = self.channels.allowance(self.learner).spend(len(events), len(message))
        if wait > 0:
            return self._take_later(events, wait)
        self._take(events)
        return None

    async def _take_later(self, events: list[Any], wait: float) -> None:
        self._slowed = True
        self._send()
        await asyncio.sleep(wait)
        if self.ws_connection is not None:  # else the learner sends them again, in order, on the next channel
            self._take(events)

    def _take(self, events: list[Any]) -> None:
        kept: list[str] = []
        try:
            found, refused = self.room.take(self.learner, events, lambda: self._acknowledge(kept, refused))
        except NotSaved:
            return self.tell_state()  # the state includes the trouble, and the learner sends them again
        kept += found

    def tell_state(self) -> None:
        """Send the newest state with the next message."""
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

    def _send(self) -> None:
        """Send what is pending, unless a message is in flight; `_sent` then calls this again."""
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
