"""The one connection of a desk to its class: sends what lies in the outbox, and writes down what the class says.

It lives in a thread that nobody waits for. It comes back by itself, after pauses that grow, and each desk at another
moment: a class of two hundred does not return all at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

from course_lib.classroom import protocol
from course_lib.classroom.learner.class_file import Membership, read
from course_lib.classroom.learner.outbox import FILE, Outbox, only_one

LOOK = 0.2  # seconds between two looks into the outbox
TURN = 5.0  # seconds until a process asks again whether it is its turn to send
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0  # seconds before coming back
ANSWER = 20.0  # seconds after which an event that was not answered is sent again
BATCH = 50  # events in one message
ALIVE = 20.0  # seconds between two signs of life on a quiet connection


def start_channel(folder: Path) -> Channel:
    """The channel of a desk, started if this process has none."""
    folder = folder.resolve()
    running = (thread for thread in threading.enumerate() if isinstance(thread, Channel) and thread.folder == folder)
    found = next(running, None)
    if found is None:
        found = Channel(folder)
        found.start()
    return found


class Channel(threading.Thread):
    """Runs while the desk is in a class. Of all processes on a desk, one at a time is connected."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="the class's channel", daemon=True)
        self.folder = folder
        self._stopped = threading.Event()

    def run(self) -> None:
        with contextlib.suppress(OSError, sqlite3.Error):  # the desk is gone
            while not self._stopped.is_set() and read(self.folder) is not None:
                lock = only_one(self.folder)
                if lock is None:
                    self._stopped.wait(TURN)
                    continue
                try:
                    asyncio.run(self._stay())
                finally:
                    lock.close()

    def stop(self) -> None:
        """Close the connection, and end."""
        self._stopped.set()

    async def _stay(self) -> None:
        """Connect, again and again, until there is no class to connect to."""
        outbox, pause = Outbox(self.folder / FILE), FIRST_PAUSE
        try:
            while not self._stopped.is_set() and (member := read(self.folder)) is not None:
                conversation = Conversation(self.folder, member, outbox, self._stopped)
                closed = await conversation.hold()
                outbox.add_news(member.learner, reached=False, unknown=closed == protocol.UNKNOWN_SECRET)
                if closed == protocol.UNKNOWN_SECRET:
                    await self._until_another(member)
                pause = FIRST_PAUSE if conversation.was_heard else min(2 * pause, LONGEST_PAUSE)
                await self._sleep(pause * random.uniform(0.5, 1.5), member)
        finally:
            outbox.close()

    async def _sleep(self, seconds: float, member: Membership) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not self._stopped.is_set() and read(self.folder) == member:
            await asyncio.sleep(LOOK)

    async def _until_another(self, member: Membership) -> None:
        """A class that does not know us any more is not asked again, until somebody joins again."""
        while not self._stopped.is_set() and read(self.folder) == member:
            await asyncio.sleep(1)


class Conversation:
    """One connection, from its opening to its end."""

    def __init__(self, folder: Path, member: Membership, outbox: Outbox, stopped: threading.Event) -> None:
        self.folder, self.member, self.outbox, self.stopped = folder, member, outbox, stopped
        self.was_heard = False
        self._sent: dict[str, float] = {}  # when, of events that were not answered yet

    async def hold(self) -> int | None:
        """Until it is closed. Returns the code that the class closed it with, if it did."""
        try:
            connection = await self._connect()
        except Exception:  # nobody there, a refusal, another certificate: all are reasons to come back later
            return None
        sending = asyncio.ensure_future(self._send(connection))
        try:
            while (message := await connection.read_message()) is not None:
                self._hear(message)
            return connection.close_code
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await sending

    async def _connect(self) -> Any:
        from tornado.httpclient import HTTPRequest
        from tornado.websocket import websocket_connect

        from course_lib.classroom.learner.joining import trust

        member = self.member
        context = await asyncio.to_thread(trust, member.url, member.fingerprint)
        address = f"ws{member.url.removeprefix('http')}/channel"
        headers = {"Authorization": f"Bearer {member.secret}"}
        request = HTTPRequest(address, headers=headers, ssl_options=context, connect_timeout=15, request_timeout=15)
        return await websocket_connect(request, ping_interval=ALIVE, max_message_size=protocol.LARGEST_MESSAGE)

    async def _send(self, connection: Any) -> None:
        """Whatever is put into the outbox, by whichever process, until the desk leaves or joins another class."""
        seen = None
        try:
            while not self.stopped.is_set() and read(self.folder) == self.member:
                version = self.outbox.version()
                if version != seen or self._sent:
                    await self._send_new(connection)
                seen = version
                await asyncio.sleep(LOOK)
        finally:
            connection.close()

    async def _send_new(self, connection: Any) -> None:
        now = time.monotonic()
        waiting = self.outbox.waiting(self.member.learner)
        new = [event for event in waiting if now - self._sent.get(event["id"], -ANSWER) >= ANSWER]
        for first in range(0, len(new), BATCH):
            batch = new[first : first + BATCH]
            await connection.write_message(json.dumps({"events": batch}))
            self._sent.update({event["id"]: now for event in batch})

    def _hear(self, message: str | bytes) -> None:
        try:
            told = json.loads(message)
            kept, refused, state = told.get("kept") or [], told.get("refused") or {}, told.get("state")
            done = [str(each) for each in (*kept, *refused)]
        except (ValueError, TypeError, AttributeError):
            return  # a newer class may say more than we know
        self.was_heard = True
        self.outbox.remove(done)
        for each in done:
            self._sent.pop(each, None)
        news: dict[str, Any] = {"reached": True, "unknown": False}
        if isinstance(state, dict):
            news["state"] = state
        if refused:
            news["refused"] = {"id": next(reversed(refused)), "why": str(list(refused.values())[-1])}
        self.outbox.add_news(self.member.learner, **news)
