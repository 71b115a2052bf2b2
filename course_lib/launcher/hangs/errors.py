"""The errors of a launch. A `LaunchError` says which rank is to blame, if any; `Interrupted` is a Ctrl-C."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from course_lib.launcher.hangs.stacks import Frame, Where, describe_stack

# Errors from gloo, NCCL and gRPC that a rank sees when a peer is gone. They are never the root cause.
CONSEQUENCE = re.compile(
    r"Connection (closed|reset|refused)|connection was lost|Timed out waiting|Broken pipe|"
    r"Read error|Application timeout caused pair closure|monitoredBarrier|NCCL .*remote error|"
    r"Socket closed|failed to connect to all addresses|heartbeat",
    re.IGNORECASE,
)


class LaunchError(RuntimeError):
    """A launch failed. `output` and `spans` hold what the ranks printed and recorded until then.

    `counts[rank]` is how many collectives that rank had started. Ranks that died before they could report are missing.
    """

    output: Sequence[tuple[int, str]] = ()
    spans: Sequence = ()
    counts: Mapping[int, int] = MappingProxyType({})

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: what happened on the ranks, without the launcher's own frames."""
        return [f"{type(self).__name__}: {self}"]


class CannotSend(LaunchError, TypeError):
    """A value cannot be sent between the notebook and the ranks."""


class RankFailed(LaunchError):
    """A rank raised an exception. `rank` is the one to blame; `exception` is what it raised, if it could be sent.

    `raised` is the name of the exception's type and its text, which can always be sent.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int,
        exception: BaseException | None = None,
        stack: Sequence[Frame] = (),
        also: Sequence[int] = (),
        raised: tuple[str, str] = ("", ""),
    ) -> None:
        self.rank, self.exception, self.stack, self.raised = rank, exception, tuple(stack), raised
        others = f"{name_ranks(also)} raised too." if also else ""
        super().__init__("\n\n".join(filter(None, [f"rank {rank} raised {message}", describe_stack(stack), others])))


class CollectivesDiffer(LaunchError):
    """Ranks disagreed about a collective or a message. `calls[rank]` is what that rank called.

    `rank` is the one that differs from the majority, or None if there is no majority.
    """

    def __init__(self, *, odd: int | None, calls: dict[int, str], places: dict[int, str], after: str = "") -> None:
        self.rank, self.calls = odd, calls
        if all(call.startswith(("send ", "recv ")) for call in calls.values()):
            headline = "a message does not match its receive"
            rule = "The receiver needs a tensor with the same number of elements and the same dtype as the sender's."
        else:
            headline = "the ranks called different collectives"
            terms = "shape, dtype and root" if all(" rank " in call for call in calls.values()) else "shape and dtype"
            rule = f"Every rank must make the same call, with the same {terms}, in the same order."
        blame = "" if odd is None else f"; rank {odd} is the odd one out"
        width = max(map(len, calls.values()))
        rows = [f"  rank {rank}  {call:<{width}}  {places.get(rank, '')}" for rank, call in sorted(calls.items())]
        table = "\n".join(row.rstrip() for row in rows)
        super().__init__(f"{headline}{blame}\n\n{table}\n\n{rule}" + (f"\n\n{after}" if after else ""))


class RankDied(LaunchError):
    """A rank's process ended before its function, or the cell, had ended. `exitcode` is negative for a signal."""

    def __init__(
        self, *, rank: int, exitcode: int, stack: Sequence[Frame] = (), before: str = "its function returned"
    ) -> None:
        self.rank, self.exitcode, self.stack = rank, exitcode, tuple(stack)
        ending = f"ended with exit code {exitcode}"
        if exitcode < 0:
            name = {number.value: number.name for number in signal.Signals}.get(-exitcode, f"signal {-exitcode}")
            ending = f"was killed by {name}" + " (out of memory is the usual reason)" * (name == "SIGKILL")
        text = f"rank {rank} {ending} before {before}"
        super().__init__(f"{text}\n\n{describe_stack(stack)}" if stack else text)


class PeersLost(LaunchError):
    """Ranks on other machines no longer answer. `rank` is the one that reports it; `lost` are the missing ones."""

    def __init__(self, *, rank: int, lost: Sequence[int], hosts: str, place: str, cause: BaseException) -> None:
        self.rank, self.lost, self.exception = rank, tuple(lost), cause
        super().__init__(
            f"rank {rank} lost {name_ranks(lost)} on {hosts}: no answer. Most likely {hosts} or the network "
            f"in between is down\n\n  it waited at {place}\n  {cause}"
        )

    def __reduce__(self) -> tuple:
        return LaunchError, (str(self),)


class RanksStuck(LaunchError):
    """Ranks are deadlocked, or ran out of time. `where[rank]` is what each was doing; `odd` are the ones that differ.

    If we know before the time is up that the ranks would wait forever, `because` says why, and `proven` is true.
    Otherwise the launch timed out, and `spent` is the limit that was used up.
    """

    def __init__(self, *, where: dict[int, Where], because: str = "", spent: str = "", odd: Sequence[int] = ()) -> None:
        self.where, self.proven = where, bool(because)
        self.odd = tuple(odd) or odd_ones_out(where)
        be = "is the odd one out" if len(self.odd) == 1 else "are the odd ones out"
        stands_out = f"{name_ranks(self.odd)} {be}" if self.odd else all_alike(where) or "no rank stands out"
        head = f"the ranks wait forever; {because}" if because else f"not finished after {spent}; {stands_out}"
        super().__init__(f"{head}\n\n{_table(where)}")


class Detached(LaunchError):
    """The cluster job is still running, but this program no longer watches it. The message says how to check on it."""


class Interrupted(KeyboardInterrupt):
    """The user interrupted a launch. `where[rank]` is what each rank was doing, if it could answer."""

    def __init__(
        self, when: str = "", where: dict[int, Where] | None = None, *, then: str = "all ranks were stopped"
    ) -> None:
        self.when, self.where = when, where or {}
        text = f"interrupted {when}; {then}" if when else then
        super().__init__(f"{text}\n\n{_table(self.where)}" if self.where else text)

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: where the ranks were, without the launcher's own frames."""
        return [f"KeyboardInterrupt: {self}"]


def all_alike(states: dict[int, Where]) -> str:
    """Return a sentence about what all ranks are doing, or "" if they differ or there is no sentence for it."""
    kinds = {(state.doing, state.collective) for state in states.values()}
    sentences = {
        ("waiting", "recv"): "every rank waits in recv, and no rank sends",
        ("waiting", "send"): "every rank waits in send, and no rank receives",
        ("running", None): "every rank is still computing (raise timeout= if it only needs more time)",
    }
    return sentences.get(next(iter(kinds)), "") if len(kinds) == 1 else ""


def odd_ones_out(states: dict[int, Where]) -> tuple[int, ...]:
    """Return the ranks that are doing something different from the majority; in a tie, those that are not waiting."""
    groups: dict[tuple, list[int]] = {}
    for rank, state in states.items():
        groups.setdefault(state.kind, []).append(rank)
    if len(groups) < 2:
        return ()
    if stopped := tuple(rank for rank in sorted(states) if states[rank].doing == "stopped"):
        return stopped
    largest, second, *_ = sorted(groups.values(), key=len, reverse=True)
    if len(largest) > len(second):
        return tuple(sorted(states.keys() - set(largest)))
    busy = tuple(rank for rank in sorted(states) if states[rank].doing != "waiting")
    return busy if len(busy) < len(states) else ()


def in_one_line(states: dict[int, Where]) -> str:
    """Summarize what the ranks are doing, grouped: `ranks 0 and 1: waiting in all_reduce, rank 2: running`."""
    descriptions = {
        "returned": "done",
        "idle": "idle",
        "waiting": "waiting in {}",
        "computing": "computing on its GPU before {}",
        "stopped": "stopped by a signal",
    }
    groups: dict[str, list[int]] = {}
    for rank, state in sorted(states.items()):
        doing = descriptions.get(state.doing, "running").format(state.collective)
        if state.doing not in ("returned", "idle"):
            doing += f" {state.whom}" * bool(state.whom) + (f" (line {state.frame.line})" if state.frame else "")
        groups.setdefault(doing, []).append(rank)
    return ", ".join(f"{name_ranks(ranks)}: {doing}" for doing, ranks in groups.items())


def _table(states: dict[int, Where]) -> str:
    return "\n".join(f"  rank {rank}  {state}" for rank, state in sorted(states.items()))


def name_ranks(ranks: Sequence[int]) -> str:
    """Return the ranks as text: `rank 2`, `ranks 0 and 3`, `ranks 0, 1 and 3`."""
    *first, last = map(str, ranks)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"


def explain_failure(error: BaseException) -> str:
    """Return what went wrong and what to do about it."""
    if isinstance(error, LaunchError):
        return str(error)
    explanations = {
        errno.ENOMEM: "this machine has too little memory: launch fewer ranks",
        errno.EMFILE: "too many open files. The supervisor process needs five per rank: raise the limit "
        "(`ulimit -n 1024` before Jupyter is started), or launch fewer ranks",
        errno.EAGAIN: "no more processes are allowed. Every rank has a process and some threads: raise the limit "
        "(`ulimit -u`, or the container's), close other programs, or launch fewer ranks",
        errno.ENOSPC: "the disk for temporary files is full: free up space there, or set TMPDIR to another folder",
    }
    explanations[errno.ENFILE] = explanations[errno.EMFILE]
    number = errno.ENOMEM if isinstance(error, MemoryError) else getattr(error, "errno", None)
    if number in explanations:
        return explanations[number]
    if "AF_UNIX path too long" in str(error):
        return "the name of the folder for temporary files is too long: set TMPDIR to one with a shorter name"
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):
        return "there is no folder for temporary files: set TMPDIR to one that exists and can be written to"
    return f"{type(error).__name__}: {error}"
