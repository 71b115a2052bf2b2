"""Who is to blame: from what all ranks reported, the one error to show."""

from __future__ import annotations

import re
from collections import Counter

from course_lib.launchers import payload
from course_lib.launchers.errors import CannotSend, CollectivesDiffer, LaunchError, RankDied, RankFailed
from course_lib.launchers.messages import Died, Raised
from course_lib.launchers.stacks import where

# What a rank sees when another one has gone: never the cause.
CONSEQUENCE = re.compile(
    r"Connection (closed|reset|refused)|connection was lost|Timed out waiting|Broken pipe|"
    r"Read error|Application timeout caused pair closure|monitoredBarrier|NCCL .*remote error",
    re.IGNORECASE,
)
FINGERPRINT = re.compile(
    r"Rank (?P<rank>\d+) is running collective: CollectiveFingerPrint\(SequenceNumber=\d+, OpType=(?P<op>\w+)"
    r"(?:, TensorShape=\[(?P<shape>.*?)\], TensorDtypes=(?P<dtype>\w+))?"
)
OPS = {"ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "ALLTOALL": "all_to_all"}
DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "Int": "int32", "Long": "int64"}


def verdict(raised: list[Raised], died: list[Died]) -> LaunchError:
    """The error that explains the launch. At least one rank has raised or died."""
    causes = [report for report in raised if not CONSEQUENCE.search(report.text)]
    if died:
        first = died[0]
        return RankDied(rank=first.rank, exitcode=first.exitcode, stack=first.stack)
    return _collectives_differ(causes) or _rank_failed(causes or raised, raised)


def _rank_failed(causes: list[Raised], raised: list[Raised]) -> LaunchError:
    alike = len({(report.type_name, report.text) for report in causes}) == 1
    first = min(causes, key=lambda report: report.rank if alike else report.at)
    if first.type_name == CannotSend.__name__:
        return CannotSend(f"rank {first.rank}: {first.text}")
    message = f"{first.type_name}: {first.text}" if first.text else first.type_name
    also = sorted(report.rank for report in causes if report is not first)
    return RankFailed(message, rank=first.rank, exception=_exception(first), stack=first.stack, also=also)


def _collectives_differ(causes: list[Raised]) -> CollectivesDiffer | None:
    """PyTorch's cross-examination fails on every rank at once, each naming its own call first."""
    calls, frames = {}, {}
    for report in causes:
        found = FINGERPRINT.search(report.text)
        if found and int(found["rank"]) == report.rank:
            calls[report.rank] = _call(found)
            frames[report.rank] = where(report.stack).frame
    counts = Counter(calls.values())
    if len(counts) < 2:
        return None
    odd = min(calls, key=lambda rank: (counts[calls[rank]], rank))
    return CollectivesDiffer(rank=odd, calls=calls, where=frames)


def _call(found: re.Match) -> str:
    op = OPS.get(found["op"], found["op"].lower())
    if found["dtype"] is None:
        return op
    shape = ", ".join(re.findall(r"\d+", found["shape"]))
    return f"{op} of {DTYPES.get(found['dtype'], found['dtype'].lower())} [{shape}]"


def _exception(report: Raised) -> BaseException | None:
    if report.exception is None:
        return None
    try:
        return payload.unpack(report.exception)
    except Exception:
        return None
