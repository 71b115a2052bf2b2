"""Close a listening port to other machines, where the library that opened it gives no choice.

TensorFlow's workers listen on all of a machine's addresses, and do what any caller asks of them. Linux lets a process
put a filter before a socket of its own: here, one that drops packets from any address but 127.x.x.x.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator

INTERNET = (socket.AF_INET, socket.AF_INET6)
SO_ATTACH_FILTER = 26
NETWORK_HEADER = -0x100000 & 0xFFFFFFFF  # where a filter finds the header of the packet's network layer
LOAD_BYTE, RIGHT_SHIFT, JUMP_IF_EQUAL, ANSWER = 0x30, 0x74, 0x15, 0x06
KEEP, DROP = 0xFFFFFFFF, 0
FROM_THIS_MACHINE = (  # code, jump if true, jump if false, value
    (LOAD_BYTE, 0, 0, NETWORK_HEADER),
    (RIGHT_SHIFT, 0, 0, 4),
    (JUMP_IF_EQUAL, 0, 3, 4),  # IPv4, or dropped
    (LOAD_BYTE, 0, 0, NETWORK_HEADER + 12),  # the first byte of the source address
    (JUMP_IF_EQUAL, 0, 1, 127),
    (ANSWER, 0, 0, KEEP),
    (ANSWER, 0, 0, DROP),
)


def close_to_other_machines() -> int:
    """Let every port that this process listens on answer this machine alone. How many they are: on Linux only."""
    if not sys.platform.startswith("linux"):
        return 0
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in FROM_THIS_MACHINE))
    program = struct.pack("HL", len(FROM_THIS_MACHINE), ctypes.addressof(instructions))
    count = 0
    for one in listening_sockets():
        one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        count += 1
    return count


def listening_sockets() -> Iterator[socket.socket]:
    """Where this process waits for TCP connections, whoever in it has opened the port: copies, each closed after it."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # it was closed in between
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as copy:
                    if copy.family in INTERNET and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        yield copy
