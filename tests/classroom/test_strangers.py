"""Whoever can reach the port, with or without the code: odd requests, floods, and names that cost time."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os

import pytest

from course_lib.classroom import protocol
from course_lib.classroom.server import members
from course_lib.classroom.server.record_file import read
from tests.classroom.serving import come_back, enter, event_of, raw
from tests.conftest import PATIENCE

pytestmark = pytest.mark.anyio

OWN = b"Host: 127.0.0.1\r\n"
ODD = {  # and what may be answered
    "a host that is not a name": (b"GET / HTTP/1.1\r\nHost: [\r\n\r\n", b"40"),
    "an origin that is none": (b"GET / HTTP/1.1\r\n" + OWN + b"Origin: http://[\r\n\r\n", b"403"),
    "a channel of an origin that is none": (b"GET /channel HTTP/1.1\r\n" + OWN + b"Origin: http://[::\r\n\r\n", b"40"),
    "a file above the pages": (b"GET /pages/..%2f..%2fprotocol.py HTTP/1.1\r\n" + OWN + b"\r\n", b"40"),
    "a file of the machine": (b"GET /pages/%2fetc/passwd HTTP/1.1\r\n" + OWN + b"\r\n", b"40"),
    "a file whose name ends early": (b"GET /pages/class.css%00.js HTTP/1.1\r\n" + OWN + b"\r\n", b"404"),
    "the list of the pages": (b"GET /pages/ HTTP/1.1\r\n" + OWN + b"\r\n", b"40"),
    "a token that is not text": (b"GET /view/state?token=%ff HTTP/1.1\r\n" + OWN + b"\r\n", b"40"),
    "a cookie that is not text": (
        b"GET /view/state HTTP/1.1\r\n" + OWN + b"Cookie: course-class=\xff\xfe\r\n\r\n",
        b"40",
    ),
    "colors for a terminal": (b"GET /\x1b[2J\x1b[31m HTTP/1.1\r\n" + OWN + b"\r\n", b"400"),
    "a body of two lengths": (
        b"POST /join HTTP/1.1\r\n" + OWN + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"400",
    ),
    "a body in pieces without an end": (
        b"POST /join HTTP/1.1\r\n"
        + OWN
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + (b"1000\r\n" + b"x" * 4096 + b"\r\n") * 9,
        b"40",
    ),
    "headers without an end": (b"GET / HTTP/1.1\r\n" + OWN + b"X: y\r\n" * 20_000, b""),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00" * 9 + b"\r\n\r\n", b"40"),
}


async def answer_to(served, sent: bytes) -> bytes:
    reader, writer = await raw(served)
    writer.write(sent)
    said = b""
    with contextlib.suppress(ConnectionError):
        said = await asyncio.wait_for(reader.readline(), PATIENCE)
    writer.close()
    return said


async def test_odd_requests_are_refused_and_print_nothing_where_the_instructor_looks(served, caplog):
    caplog.set_level(logging.WARNING)
    ada = await enter(served, "Ada")
    for name, (sent, allowed) in ODD.items():
        said = await answer_to(served, sent)
        assert said == b"" or allowed in said.split()[1], (name, said)
    assert await ada.say(kind="slower") == ""
    assert [record.message for record in caplog.records] == []


def frame(opcode: int, data: bytes, final: bool = True) -> bytes:
    """A WebSocket frame of a client, whose mask is zero."""
    length = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + len(data).to_bytes(2, "big")
    return bytes([(0x80 if final else 0) | opcode]) + length + bytes(4) + data


async def by_hand(served, secret: str):
    """A channel as somebody opens it who keeps to no rule afterwards."""
    reader, writer = await raw(served)
    key = base64.b64encode(os.urandom(16)).decode()
    asked = "GET /channel HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    asked += f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer {secret}\r\n\r\n"
    writer.write(asked.encode())
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    return reader, writer


async def test_pings_of_one_who_does_not_read_fill_no_memory(served):
    ada, mallory = await enter(served, "Ada"), await enter(served, "Mallory")
    _, writer = await by_hand(served, mallory.secret)
    writer.transport.pause_reading()
    channels = served.settings["channels"]._of[mallory.learner]
    while len(channels) < 2:
        await asyncio.sleep(0.01)
    for _ in range(100):
        writer.write(frame(9, b"x" * 125) * 500)
        await writer.drain()
    assert await ada.say(kind="slower") == ""
    waiting = [len(one.ws_connection.stream._write_buffer) for one in channels if one.ws_connection]
    assert max(waiting) < 1 << 20  # of six megabytes
    writer.close()


async def test_a_message_in_pieces_that_never_ends_ends_its_channel(served):
    ada, mallory = await enter(served, "Ada"), await enter(served, "Mallory")
    reader, writer = await by_hand(served, mallory.secret)
    writer.write(frame(1, b"{", final=False))
    try:
        for _ in range(2 + protocol.LARGEST_MESSAGE // 60_000):
            writer.write(frame(0, b" " * 60_000, final=False))
            await writer.drain()
        await asyncio.wait_for(reader.read(), PATIENCE)  # returns at the end of the connection
    except ConnectionError:
        pass
    assert await ada.say(kind="slower") == ""
    writer.close()


async def test_the_thousandth_of_a_name_costs_no_more_than_the_first(served, monkeypatch):
    looked, alike = [], members._alike
    monkeypatch.setattr(members, "_alike", lambda name: looked.append(name) or alike(name))
    for place in range(300):
        served.room.members.join("Mallory" if place % 2 else "mallory")
    names = {alike(one.name) for one in served.room.members._by_learner.values()}
    assert len(names) == 300
    assert len(looked) < 300 * 8


async def test_who_has_left_is_not_counted_for_ever(served):
    for _ in range(5):
        one = await enter(served)
        one.channel.close()
        while served.room.here[one.learner]:
            await asyncio.sleep(0.01)
    assert len(served.room.here) == 0


def test_what_was_sent_to_an_earlier_server_counts_once_if_it_is_sent_again(in_class, tmp_path):
    event, known = event_of(kind="checked", number="02.1", passed=True, points=3), {}

    async def first(served):
        ada = await enter(served, "Ada")
        known.update(learner=ada.learner, secret=ada.secret)
        assert await ada.say(**event) == ""

    async def second(served):
        ada = await come_back(served, known["learner"], known["secret"])
        for said in (event, {**event, "passed": False, "points": 0}):
            ada.kept.clear()
            assert await ada.say(**said) == ""

    in_class(first)
    in_class(second)
    ((body,),) = read(tmp_path / "class.db", "SELECT body FROM events")
    assert json.loads(body)["passed"] is True
