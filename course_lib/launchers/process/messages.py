"""What a rank, its supervisor and the notebook say to each other. Values travel as packed bytes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from course_lib.launchers.diagnosis.call_log import Record
from course_lib.launchers.diagnosis.stacks import Frame, Where
from course_lib.launchers.tracing.events import Collective, Profile
from course_lib.trace import Span


@dataclass(frozen=True)
class LaunchSpec:
    """One launch, as its supervisor receives it: all of it, or the ranks that one of several machines runs."""

    call: bytes
    ranks: int
    environment: dict[str, str]
    folder: str
    sources: dict[str, tuple] = field(repr=False)
    here: range  # the ranks that run on this machine
    argv: list[str] = field(default_factory=list)  # what the function finds in sys.argv
    profile: bool = False  # record with PyTorch's profiler
    framework: str = "torch"  # by which the ranks meet
    seed: int | None = None  # rank 2 draws from seed + 2; None: every rank draws numbers that nobody can foretell
    rendezvous: Rendezvous | None = None  # None: all ranks are on this machine, and meet in a file


@dataclass(frozen=True)
class Rendezvous:
    """Where ranks of several machines find each other, and the attempt of a job that may be started again."""

    address: str
    port: int
    job: str
    restarts: int = 0
    peer_timeout: float | None = None  # seconds a rank waits for another; None: as long as PyTorch does


@dataclass(frozen=True)
class Lines:
    """Whole lines a rank printed."""

    rank: int
    lines: list[str]


@dataclass(frozen=True)
class Unfinished:
    """A line that a rank has begun and not ended: a progress bar, say, as it stands now."""

    rank: int
    text: str


@dataclass(frozen=True)
class Started:
    """The rank's process group is up and its function begins; `compared`: its collectives can be."""

    rank: int
    compared: bool = True


@dataclass(frozen=True)
class Returned:
    """The rank's function returned; `began` and `ended` are monotonic times, as are those of what it recorded."""

    rank: int
    value: bytes
    spans: list[Span]
    record: Record
    began: float
    ended: float
    collectives: list[Collective] = field(default_factory=list)
    profile: Profile | None = None
    stopped: bool = False  # before its end, because it was asked to
    core_waits: list[tuple[float, float]] = field(default_factory=list)  # (when, seconds waited for a core by then)

    def later(self, seconds: float) -> Returned:
        """The same, as a clock has it that is so many seconds ahead."""
        return replace(
            self,
            spans=[span.since(-seconds) for span in self.spans],
            began=self.began + seconds,
            ended=self.ended + seconds,
            collectives=[collective.since(-seconds) for collective in self.collectives],
            profile=self.profile and self.profile.since(-seconds),
            core_waits=[(at + seconds, waited) for at, waited in self.core_waits],
        )


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
    record: Record


@dataclass(frozen=True)
class Died:
    """The rank's process ended on its own."""

    rank: int
    exitcode: int
    stack: list[Frame]
    at: float = 0.0  # when it was noticed


@dataclass(frozen=True)
class Located:
    """Where a rank is: said when asked, and unasked by a rank that has waited for a while.

    Without a record, the supervisor says it for a rank that cannot.
    """

    rank: int
    where: Where
    record: Record | None


@dataclass(frozen=True)
class SupervisorFailed:
    """The supervisor could not start the ranks, or broke down: `text` says why, and what to do."""

    text: str


class Channel(Protocol):
    """The notebook's end of the talk: a pipe to its supervisor, or what stands for the supervisors of several nodes."""

    def send(self, order: Any, /) -> None: ...

    def recv(self) -> Any: ...

    def poll(self, seconds: float | None, /) -> bool: ...


@dataclass(frozen=True)
class Stop:
    """Save what you have, and end; for the ranks, from whoever was asked so."""

    reason: str


# What else the notebook tells the supervisor, and the supervisor a rank.
LOCATE = "where are you?"
LOOK = "where are you, if you can say?"  # nobody is signalled who cannot
DISMISS = "you may go"
STILL_HERE = "I am still listening"
