"""The orders from the notebook to the supervisor, and from the supervisor to a rank."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.launchers.process.messages import LaunchSpec


@dataclass(frozen=True)
class Stop:
    """A request to the ranks to save their state and return."""

    reason: str


@dataclass(frozen=True)
class Task:
    """Something for live ranks to do: a pickled call, whose first argument will be the rank."""

    number: int
    call: bytes


@dataclass(frozen=True)
class Interrupt:
    """A request to live ranks to leave their task. With `abort`, waits in the process group end with an error."""

    abort: bool


@dataclass(frozen=True)
class Kill:
    """An order to end some live ranks."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Revive:
    """An order to start the live ranks that have ended again, from this specification."""

    spec: LaunchSpec


LOCATE = "where are you?"
LOOK = "where are you, if you can say?"  # the supervisor does not signal ranks that cannot answer
DISMISS = "you may go"
STILL_HERE = "I am still listening"
