"""Hand each rank its own inputs, once.

A rank claims its inputs before any submitted code runs on it, and receives those of a case once the answer is unpacked.
"""

from __future__ import annotations

import json
import pickle
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from io import BytesIO
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

WITHIN = 60.0  # seconds for a rank to identify itself
CLAIMED = b"claimed"
FEWER_FILES = 4096  # half of what `Limits` allows


@dataclass(frozen=True)
class PerRank:
    """The inputs of one case, pickled separately for each rank, so that each rank can read only its own.

    If `confined`, ranks share no files while they work on the case.
    """

    inputs: Sequence[bytes]
    confined: bool = False


@dataclass(frozen=True)
class Packed:
    """An answer as bytes, which only ranks unpack."""

    data: bytes


@dataclass(frozen=True)
class Parcel:
    """The address and token with which the ranks of one launch get their inputs."""

    address: Any
    token: str
    confined: bool = False  # whether each rank is confined to its own folder

    def claim(self, rank: int) -> Claim:
        """Claim this rank's inputs. Nobody else can claim them after that; the keeper holds them until `next_case`."""
        keeper = Client(self.address)
        keeper.send_bytes(json.dumps([self.token, rank]).encode())
        if keeper.recv_bytes() != CLAIMED:
            raise EOFError("the keeper did not confirm the claim")
        return Claim(keeper)


class Claim:
    """A rank's connection to the keeper, which sends its inputs one case at a time."""

    def __init__(self, keeper: Any) -> None:
        self._keeper = keeper

    def next_case(self) -> dict[str, Any]:
        """Return the inputs of the next case. Call this after unpacking the answer, because unpacking runs its code."""
        self._keeper.send_bytes(b"next")
        return pickle.loads(self._keeper.recv_bytes())


class Keeper:
    """Hands out the inputs. It lives in the process that launches the ranks; they are not forked from that process."""

    def __init__(self) -> None:
        self._listener = Listener(backlog=128)
        self._held: dict[tuple[str, int], list[bytes]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._serve, daemon=True).start()

    def hold(self, cases: Sequence[PerRank], *, confined: bool = False) -> Parcel:
        """Hold only these cases' inputs, for the ranks of one launch, and return the parcel that those ranks open."""
        token = secrets.token_hex(16)
        with self._lock:
            self._held = {(token, rank): [case.inputs[rank] for case in cases] for rank in range(len(cases[0].inputs))}
        return Parcel(self._listener.address, token, confined)

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:  # the caller has already disconnected
                continue
            threading.Thread(target=self._hand_over, args=(connection,), daemon=True).start()

    def _hand_over(self, connection: Connection) -> None:
        try:
            with connection:
                if connection.poll(WITHIN):
                    token, rank = json.loads(connection.recv_bytes(1000))
                    with self._lock:
                        parcel = self._held.pop((token, rank), None)
                    if parcel is not None:
                        connection.send_bytes(CLAIMED)
                        for inputs in parcel:
                            connection.recv_bytes(1000)
                            connection.send_bytes(inputs)
        except (OSError, EOFError, ValueError, TypeError):
            pass  # the caller was not a rank


class PlainUnpickler(pickle.Unpickler):
    """Unpickles only the launcher's messages, because the rank that sends them may run hostile code."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if module_name.startswith(("course_lib.launcher.", "course_lib.runtime.trace")):
            found = super().find_class(module_name, global_name)
            if isinstance(found, type) and is_dataclass(found):
                return found
        if module_name == "builtins" and global_name in ("set", "frozenset", "range"):
            return super().find_class(module_name, global_name)
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is not a launcher message")


def plain_loads(data: Any) -> Any:
    """Like `pickle.loads`, but only for the launcher's messages."""
    return PlainUnpickler(BytesIO(bytes(data))).load()


def read_only_messages() -> None:
    """Make this process unpickle nothing from ranks and supervisors except the launcher's messages."""
    from multiprocessing.reduction import ForkingPickler

    from course_lib.launcher.wire import pickling

    ForkingPickler.loads = staticmethod(plain_loads)  # pyright: ignore[reportAttributeAccessIssue]
    pickling.unpack = plain_loads


def open_fewer_files() -> None:
    """Let this process, which runs submitted code, open fewer files than our own processes may.

    The kernel counts the descriptors that a user's processes pass to each other, and refuses more than a process may
    open. Without root, all submissions run as the same user, and one that reaches its limit must not keep our processes
    from starting the ranks of another.
    """
    import resource
    import sys

    if sys.platform.startswith("linux"):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        fewer = FEWER_FILES if most == resource.RLIM_INFINITY else min(most, FEWER_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (fewer, fewer))


def hide_memory() -> None:
    """Stop this user's other processes from reading the memory or files of this process and its forks."""
    import ctypes
    import sys

    if sys.platform.startswith("linux"):
        set_dumpable = 4
        ctypes.CDLL(None).prctl(set_dumpable, 0, 0, 0, 0)
