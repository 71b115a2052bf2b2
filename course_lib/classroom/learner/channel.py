"""A desk's only connection to its class: sends the events in the outbox and stores the news from the class.

It runs in a daemon thread and reconnects with exponential backoff and jitter, so that a class of two hundred does not
reconnect all at once.
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

LOOK = 0.2  # seconds between checks of the outbox
TURN = 5.0  # seconds until a process tries again to become the sender
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0  # seconds before reconnecting
ANSWER = 20.0  # seconds to wait for an acknowledgement before reconnecting
BATCH, LARGEST_BATCH = 50, protocol.LARGEST_MESSAGE // 4  # events and characters per message
ALIVE = 20.0  # seconds between pings


def start_channel(folder: Path) -> Channel:
    """Return this process's channel for a desk, starting it if needed."""
    folder = folder.resolve()
    running = (thread for thread in threading.enumerate() if isinstance(thread, Channel) and thread.folder == folder)
    found = next(running, None)
    if found is None:
        found = Channel(folder)
        found.start()
    return found


class Channel(threading.Thread):
    """Runs while the desk is in a class. Only one process per desk is connected at a time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="the class's channel", daemon=True)
        self.folder = folder
        self._stopped = threading.Event()

    def run(self) -> None:
        with contextlib.suppress(OSError, sqlite3.Error):  # the desk was removed
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
        """Close the connection and end the thread."""
        self._stopped.set()

    async def _stay(self) -> None:
        """Connect and reconnect until the desk leaves its class."""
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
        """Wait until the learner joins again: this class no longer knows us."""
        while not self._stopped.is_set() and read(self.folder) == member:
            await asyncio.sleep(1)


class Conversation:
    """One connection, from opening to closing.

    Only one message is in flight at a time, so events arrive in order even if the connection breaks: the next
    connection starts with the oldest event that was not acknowledged.
    """

    def __init__(self, folder: Path, member: Membership, outbox: Outbox, stopped: threading.Event) -> None:
        self.folder, self.member, self.outbox, self.stopped = folder, member, outbox, stopped
        self.was_heard = False
        self._sent: set[str] = set()  # ids of unacknowledged events
        self._sent_at = 0.0
        self._in_trouble = False  # the class can't save anything: wait until it reports that it can
        self._look_again = False

    async def hold(self) -> int | None:
        """Run until the connection closes. Returns the class's close code, if any."""
        try:
            connection = await self._connect()
        except Exception:  # no server, a refusal, a wrong certificate: try again later
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
        """Send what any process puts into the outbox, until the desk leaves or joins a different class."""
        seen = None
        try:
            while not self.stopped.is_set() and read(self.folder) == self.member:
                if self._sent and time.monotonic() - self._sent_at > ANSWER:
                    return
                version = self.outbox.version()
                if (version != seen or self._look_again) and not self._sent and not self._in_trouble:
                    self._look_again, seen = False, version
                    await self._send_next(connection)
                await asyncio.sleep(LOOK)
        finally:
            connection.close()

    async def _send_next(self, connection: Any) -> None:
        """Send the oldest events, as many as fit into a message."""
        batch, size = [], 0
        for event in self.outbox.waiting(self.member.learner, BATCH):
            size += len(json.dumps(event))
            if size > LARGEST_BATCH and batch:
                break
            batch.append(event)
        if size > protocol.LARGEST_MESSAGE - 100 and len(batch) == 1:
            return self._refused({batch[0]["id"]: "this is too large for the class"})
        if batch:
            self._sent, self._sent_at = {event["id"] for event in batch}, time.monotonic()
            await connection.write_message(json.dumps({"events": batch}))

    def _refused(self, reasons: dict[str, str]) -> None:
        self.outbox.remove(reasons)
        self._look_again = True
        last = list(reasons)[-1]
        self.outbox.add_news(self.member.learner, refused={"id": last, "why": str(reasons[last])})

    def _hear(self, message: str | bytes) -> None:
        try:
            told = json.loads(message)
            kept, refused, state = told.get("kept") or [], told.get("refused") or {}, told.get("state")
            done = [str(each) for each in (*kept, *refused)]
        except (ValueError, TypeError, AttributeError):
            return  # a newer server may send messages that we do not know
        self.was_heard = True
        self.outbox.remove(done)
        self._sent.difference_update(done)
        news: dict[str, Any] = {"reached": True, "unknown": False}
        if isinstance(state, dict):
            news["state"] = state
            self._in_trouble = bool(state.get("trouble"))
        if self._in_trouble:
            self._sent.clear()  # the last events were not accepted
        if not self._sent and not self._in_trouble:
            self._look_again = True
        self.outbox.add_news(self.member.learner, **news)
        if refused:
            self._refused(refused)
