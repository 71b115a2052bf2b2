"""The thinnest WebSocket client that is one: the load must not cost more than the server that it is put on."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from urllib.parse import urlsplit

HANDSHAKE = (
    "GET /channel HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{secret}\r\n\r\n"
)
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
NO_MASK = b"\0\0\0\0"  # what a client sends is masked; with zeros, it stays what it is


class Wire(asyncio.Protocol):
    """One learner's channel. `heard` gets every message as bytes."""

    def __init__(self, hello: str, heard: Callable[[bytes], None]) -> None:
        self._hello, self._heard, self._buffer, self._upgraded = hello, heard, b"", False
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.transport.write(self._hello.encode())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._upgraded:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            assert b" 101 " in head, head
            self._upgraded, self._buffer = True, rest
        while self._take_frame():
            pass

    def _take_frame(self) -> bool:
        """Whether there was a whole one."""
        if len(self._buffer) < 2:
            return False
        kind, size, start = self._buffer[0] & 15, self._buffer[1] & 127, 2
        if size >= 126:
            form, start = ("!H", 4) if size == 126 else ("!Q", 10)
            if len(self._buffer) < start:
                return False
            (size,) = struct.unpack(form, self._buffer[2:start])
        if len(self._buffer) < start + size:
            return False
        content, self._buffer = self._buffer[start : start + size], self._buffer[start + size :]
        if kind == TEXT:
            self._heard(content)
        elif kind == PING:
            self.send(content, PONG)
        return True

    def send(self, content: bytes, kind: int = TEXT) -> None:
        size = len(content)
        length = struct.pack("!B", 128 | size) if size < 126 else struct.pack("!BH", 128 | 126, size)
        self.transport.write(bytes([128 | kind]) + length + NO_MASK + content)

    def connection_lost(self, _: Exception | None) -> None:
        self.closed = True


async def wire(url: str, secret: str, heard: Callable[[bytes], None]) -> Wire:
    """Connect as a learner; `secret` is the header that says who it is."""
    where = urlsplit(url)
    hello = HANDSHAKE.format(host=where.netloc, secret=secret)
    loop = asyncio.get_running_loop()
    _, connected = await loop.create_connection(lambda: Wire(hello, heard), where.hostname, where.port)
    return connected
