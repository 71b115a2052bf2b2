"""A second fork server, for the ranks, that no submitted code has ever reached.

The cells run in a process that was forked from the first fork server, as the same user. They can write into that
server's memory, or stop it and leave requests in its queue for later. So before the first cell runs, we fork a spare
from it, which only waits for our signal. After the last cell, everything else is killed, and the spare takes over. It
listens on an abstract socket, so a rank confined by Landlock cannot reach it to start a process without those limits.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import secrets
import socket
from multiprocessing.connection import Connection
from typing import Any

from .keeper import hide_memory

WAITS = b"waits"
LENGTH_OF_KEY = 32  # bytes; Python 3.14 requires a key


class SpareServer:
    """A fork server that waits. Create it before any submitted code runs."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self._connection, there = context.Pipe()
        process = context.Process(target=_wait_then_serve, args=(there,))
        process.start()
        there.close()
        self.pid = process.pid
        if self._connection.recv_bytes() != WAITS:
            raise EOFError("the spare server is not waiting")

    def take_over(self) -> None:
        """Make this process, and all that it starts, fork from the spare. Raises `EOFError` if it was killed."""
        key = secrets.token_bytes(LENGTH_OF_KEY)
        try:
            self._connection.send_bytes(key)
        except OSError as error:
            raise EOFError("the spare server is gone") from error
        server: Any = multiprocessing.forkserver._forkserver  # Any: the type stubs lack these attributes
        server._forkserver_address = self._connection.recv_bytes()
        server._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)  # the server ends with the sandbox
        server._forkserver_authkey = key


def _wait_then_serve(connection: Connection) -> None:
    hide_memory()
    connection.send_bytes(WAITS)
    key = connection.recv_bytes()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(b"")  # an abstract socket: the kernel chooses its name
        listener.listen()
        address = listener.getsockname()
        descriptor = listener.detach()
    alive, _ = os.pipe()
    known: dict[str, Any] = {}
    if hasattr(multiprocessing.forkserver._forkserver, "_forkserver_authkey"):
        reader, writer = os.pipe()
        os.write(writer, key)
        os.close(writer)
        known["authkey_r"] = reader
    connection.send_bytes(address)
    connection.close()
    multiprocessing.forkserver.main(descriptor, alive, [], **known)
