"""What a rank reports about its communication: collectives, messages, and what it is waiting for."""

from __future__ import annotations

from dataclasses import dataclass, field

ANYBODY = -1  # the peer of a receive from any source
Channel = tuple[str, str, int, int]  # of messages: send or recv, group, peer, tag
Splits = tuple[tuple[int, ...], tuple[int, ...]]  # of an all-to-all: sizes sent to each rank, and received from each


@dataclass(frozen=True)
class LoggedCall:
    """The `number`-th collective of a process group, as one rank called it."""

    group: str
    number: int
    op: str
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    root: int | None = None  # a global rank, if the call has a root and we know it
    reduction: str = ""  # if the call has one and we know it
    splits: Splits | None = None
    finished: bool = field(default=False, compare=False)
    order: int = field(default=0, compare=False)  # position among this rank's calls and messages in the group
    numbers: int = field(default=0, compare=False)  # elements in all input tensors
    began: float = field(default=0.0, compare=False)  # wall-clock time at which this rank entered it
    ended: float | None = field(default=None, compare=False)  # wall-clock time at which a wait in Python returned

    @property
    def key(self) -> tuple[str, int]:
        return self.group, self.order

    def __str__(self) -> str:
        text = f"{self.op} of {self.dtype} {list(self.shape)}" if self.shape is not None else self.op
        if self.reduction not in ("", "sum"):
            text += f" by {self.reduction}"
        if self.root is not None:
            text += f" {'to' if self.op in ('reduce', 'gather') else 'from'} rank {self.root}"
        if self.splits and any(map(len, self.splits)):
            text += f" split {list(self.splits[0])} into {list(self.splits[1])}"
        return text


@dataclass(frozen=True)
class LoggedMessage:
    """The `number`-th message that a rank sent to (or received from) a peer, in one group and with one tag."""

    kind: str  # send or recv
    group: str
    peer: int
    tag: int
    number: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def channel(self) -> Channel:
        return (self.kind, self.group, self.peer, self.tag)

    @property
    def as_wait(self) -> Wait:
        return Wait(self.kind, self.group, self.number, peer=self.peer, tag=self.tag)

    def __str__(self) -> str:
        towards = "to" if self.kind == "send" else "from"
        return f"{self.kind} of {self.dtype} {list(self.shape)} {towards} rank {self.peer}"


@dataclass(frozen=True)
class Wait:
    """What a rank is blocked on: a collective among `members`, or a message to or from one peer."""

    op: str
    group: str
    number: int
    members: tuple[int, ...] = ()
    root: int | None = None
    peer: int | None = None
    tag: int = 0
    guessed: bool = False  # inferred from what is in flight, because no wait in Python refers to it


@dataclass(frozen=True)
class RankRecord:
    """A snapshot of a rank's communication."""

    calls: list[LoggedCall] = field(default_factory=list)
    messages: list[LoggedMessage] = field(default_factory=list)
    begun: dict[str, int] = field(default_factory=dict)  # number of the newest collective in each group
    posted: dict[Channel, int] = field(default_factory=dict)  # number of sends or receives on each channel
    wait: Wait | None = None
    alone: bool = True  # no other Python thread is running that might communicate for this rank
