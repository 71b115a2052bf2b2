"""Ranks that connect through TensorFlow or JAX instead of torch.distributed: what each needs to find the others.

TensorFlow's workers listen on all of a machine's addresses and obey any caller, and there is no option to change that.
Linux lets a process attach a filter to its sockets; ours drops packets from any address except 127.x.x.x.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import re
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from course_lib import machine
from course_lib.launchers import private_doors
from course_lib.launchers.diagnosis.errors import LaunchError

INTERNET = (socket.AF_INET, socket.AF_INET6)
SO_ATTACH_FILTER = 26
NETWORK_HEADER = -0x100000 & 0xFFFFFFFF  # offset at which a filter finds the packet's network-layer header
LOAD_BYTE, RIGHT_SHIFT, JUMP_IF_EQUAL, ANSWER = 0x30, 0x74, 0x15, 0x06
KEEP, DROP = 0xFFFFFFFF, 0
FROM_THIS_MACHINE = (  # code, jump if true, jump if false, value
    (LOAD_BYTE, 0, 0, NETWORK_HEADER),
    (RIGHT_SHIFT, 0, 0, 4),
    (JUMP_IF_EQUAL, 0, 3, 4),  # drop anything except IPv4
    (LOAD_BYTE, 0, 0, NETWORK_HEADER + 12),  # the first byte of the source address
    (JUMP_IF_EQUAL, 0, 1, 127),
    (ANSWER, 0, 0, KEEP),
    (ANSWER, 0, 0, DROP),
)


def close_to_other_machines() -> int:
    """Make every port that this process listens on answer only this machine. Returns how many (0 if not on Linux)."""
    if not sys.platform.startswith("linux"):
        return 0
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in FROM_THIS_MACHINE)
    instructions = ctypes.create_string_buffer(code)
    program = struct.pack("HL", len(FROM_THIS_MACHINE), ctypes.addressof(instructions))
    count = 0
    for sock in listening_sockets():
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        count += 1
    return count


def listening_sockets() -> Iterator[socket.socket]:
    """Yield a copy of every TCP socket this process listens on, whatever code opened it. Each is closed after use."""
    return (sock for sock in internet_sockets() if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def internet_sockets() -> Iterator[socket.socket]:
    """Yield a copy of every TCP or UDP socket of this process, whatever code opened it. Each is closed after use."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # closed in the meantime
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as copy:
                    if copy.family in INTERNET:
                        yield copy


TORCH = "torch"
FRAMEWORKS = (TORCH, "tensorflow", "jax")
ADDRESSES = "COURSE_LIB_ADDRESSES"  # of all ranks, in order, for frameworks that need them
GREETING = re.compile(r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks")  # printed by C++ at every log level
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "GRPC_VERBOSITY": "NONE"}


def check_framework(name: str) -> None:
    """Raise if a framework is unknown or not installed."""
    if name not in FRAMEWORKS:
        raise ValueError(f"framework={name!r}: choose {', '.join(FRAMEWORKS[:-1])} or {FRAMEWORKS[-1]}")
    if name != TORCH and importlib.util.find_spec(name) is None:
        raise LaunchError(f"framework={name!r}: it is not installed here: pip install 'course-lib[frameworks]'")


def is_noise(line: str) -> bool:
    """Return whether a line printed on a rank comes from a library and is of no use to a learner."""
    return GREETING.match(line) is not None


def import_quietly(name: str) -> None:
    """Import a framework without its log messages.

    The environment variables in `QUIET` don't silence the C++ code that looks for GPUs during the import. Its output is
    shown only if the import fails.
    """
    for variable, value in QUIET.items():
        os.environ.setdefault(variable, value)
    with tempfile.TemporaryFile() as log:
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            importlib.import_module(name)
        except BaseException:
            log.seek(0)
            os.write(stderr, log.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def prepare(name: str, ranks: int) -> None:
    """Choose addresses for the ranks and import the framework once, in the process they are forked from."""
    if name == TORCH:
        return
    os.environ[ADDRESSES] = " ".join(f"127.0.0.1:{port}" for port in machine.free_ports(ranks))
    with contextlib.suppress(Exception):  # the ranks try again and report what is wrong
        import_quietly(name)


def join(name: str, rank: int) -> None:
    """Set up the framework on a rank so that it finds the others when the learner's function asks it to.

    TensorFlow reads `TF_CONFIG` when a strategy is created. JAX must be initialized before its first use. Neither
    authenticates callers, so the ports are open only to this machine.
    """
    addresses = os.environ[ADDRESSES].split()
    threads = machine.threads_per_rank(len(addresses))
    if name == "tensorflow":
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        os.environ["TF_CONFIG"] = json.dumps(task)
        import_quietly(name)
        import tensorflow

        tensorflow.get_logger().setLevel("ERROR")
        tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
        tensorflow.config.threading.set_inter_op_parallelism_threads(threads)
        _close_tensorflows_port()
    else:
        import jax

        first = addresses[0]
        jax.distributed.initialize(first, len(addresses), process_id=rank, coordinator_bind_address=first)


def _close_tensorflows_port() -> None:
    """Close TensorFlow's port to other machines as soon as its context starts the server.

    The server has no option for the address it listens on, and no password.
    """
    from tensorflow.python.eager import context as eager

    context: Any = eager.context()
    begin = context.ensure_initialized

    def begin_and_close() -> None:
        was_ready = private_doors.tensorflow_has_begun(context)
        begin()
        if not was_ready:
            close_to_other_machines()

    context.ensure_initialized = begin_and_close
