"""What a rank, its supervisor and the notebook say to each other. Values travel as packed bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from course_lib.launchers.flight import Call
from course_lib.launchers.stacks import Frame, Where
from course_lib.trace import Span


@dataclass(frozen=True)
class Job:
    """One launch, as its supervisor receives it."""

    call: bytes
    ranks: int
    environment: dict[str, str]
    folder: str
    sources: dict[str, tuple] = field(repr=False)


@dataclass(frozen=True)
class Lines:
    """Whole lines a rank printed."""

    rank: int
    lines: list[str]


@dataclass(frozen=True)
class Started:
    """The rank's process group is up and its function begins."""

    rank: int


@dataclass(frozen=True)
class Returned:
    """The rank's function returned; `began` and `ended` are monotonic times."""

    rank: int
    value: bytes
    spans: list[Span]
    calls: list[Call]
    began: float
    ended: float


@dataclass(frozen=True)
class Raised:
    """The rank's function raised. `exception` is packed, or None if it cannot travel."""

    rank: int
    at: float
    type_name: str
    text: str
    stack: list[Frame]
    exception: bytes | None
    spans: list[Span]
    calls: list[Call]


@dataclass(frozen=True)
class Died:
    """The rank's process ended on its own."""

    rank: int
    exitcode: int
    stack: list[Frame]


@dataclass(frozen=True)
class Located:
    """Where a rank is: said when asked, and unasked by a rank that has waited for a while."""

    rank: int
    where: Where
    calls: list[Call]


# What the notebook tells the supervisor, and the supervisor a rank.
LOCATE = "where are you?"
DISMISS = "you may go"
