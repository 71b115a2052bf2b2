"""The messages between a notebook, its supervisor and the ranks: the launch, reports from ranks, and orders to them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from course_lib.launcher.hangs.record import RankRecord
from course_lib.launcher.hangs.stacks import Frame, Where
from course_lib.launcher.tracing.recording import Collective, Profile
from course_lib.runtime.trace import Span


@dataclass(frozen=True)
class LaunchSpec:
    """One launch, as its supervisor receives it: all ranks, or those that run on one of several machines."""

    call: bytes
    ranks: int
    environment: dict[str, str]
    folder: str
    sources: dict[str, tuple] = field(repr=False)
    here: range  # the ranks that run on this machine
    argv: list[str] = field(default_factory=list)  # what the function finds in sys.argv
    profile: bool = False  # record with PyTorch's profiler
    seed: int | None = None  # rank 2 uses seed + 2; None: every rank gets an unpredictable seed
    live: bool = False  # the call serves cells until the ranks are dismissed; it takes the rank's process and folder
    idle: float | None = None  # seconds without a task after which live ranks are ended
    rendezvous: Rendezvous | None = None  # None: all ranks are on this machine and use a file


@dataclass(frozen=True)
class Rendezvous:
    """Where ranks on several machines find each other, and which attempt of the job this is."""

    address: str
    port: int
    job: str
    restarts: int = 0
    peer_timeout: float | None = None  # seconds a rank waits for a peer; None: PyTorch's default


class SupervisorChannel(Protocol):
    """The notebook's end of the connection: a pipe to its supervisor, or a stand-in for the pipes of several nodes."""

    def send(self, order: Any, /) -> None: ...
    def recv(self) -> Any: ...
    def poll(self, seconds: float | None, /) -> bool: ...


@dataclass(frozen=True)
class Lines:
    """Whole lines that a rank printed."""

    rank: int
    lines: list[str]


@dataclass(frozen=True)
class Unfinished:
    """The current unfinished line of a rank's output, for example a progress bar."""

    rank: int
    text: str


@dataclass(frozen=True)
class Started:
    """The rank's process group is up and its function starts."""

    rank: int


@dataclass(frozen=True)
class Returned:
    """The rank's function returned. `began`, `ended` and the times of its recordings are monotonic times."""

    rank: int
    value: bytes
    spans: list[Span]
    record: RankRecord
    began: float
    ended: float
    collectives: list[Collective] = field(default_factory=list)
    profile: Profile | None = None
    stopped: bool = False  # it returned early because it was asked to stop
    core_waits: list[tuple[float, float]] = field(default_factory=list)  # (time, seconds waited for a core by then)
    task: int = 0  # of a live rank: the task that this report is about

    def later(self, seconds: float) -> Returned:
        """Return the same report on a clock that is `seconds` ahead."""
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
    """The rank's function raised. `exception` is pickled, or None if it cannot be."""

    rank: int
    at: float
    type_name: str
    text: str
    stack: list[Frame]
    exception: bytes | None
    spans: list[Span]
    record: RankRecord
    task: int = 0


@dataclass(frozen=True)
class Died:
    """The rank's process ended."""

    rank: int
    exitcode: int
    stack: list[Frame]
    at: float = 0.0  # when it was noticed


@dataclass(frozen=True)
class Located:
    """Where a rank is. A rank sends this when asked, and once on its own after waiting for a while.

    If a rank cannot answer, the supervisor sends this for it, without a record.
    """

    rank: int
    where: Where
    record: RankRecord | None
    task: int | None = None


@dataclass(frozen=True)
class SupervisorFailed:
    """The supervisor could not start the ranks, or failed. `text` says why and what to do."""

    text: str


@dataclass(frozen=True)
class Stop:
    """A request to the ranks to save their state and return."""

    reason: str


@dataclass(frozen=True)
class LiveTask:
    """Something for live ranks to do: a pickled call, whose first argument will be the rank."""

    number: int
    call: bytes


@dataclass(frozen=True)
class Interrupt:
    """A request to live ranks to leave their task. With `abort`, a wait in the process group ends with an error."""

    abort: bool


LOCATE = "where are you?"
LOOK = "where are you, if you can say?"  # the supervisor does not signal ranks that cannot answer
DISMISS = "you may go"
STILL_HERE = "I am still listening"
