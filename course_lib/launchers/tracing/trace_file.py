"""One trace of all ranks, in the trace-event format that Perfetto and chrome://tracing open.

Each rank is a process in the trace. Its rows are our spans, the collectives, and the threads and streams that PyTorch's
profiler saw. Times are in microseconds since the start of the run, on one clock.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.launchers.tracing.recording import Collective, Profile
from course_lib.trace import Span

Event = dict[str, Any]
SPANS, COLLECTIVES, EXPOSED_ROW, PROFILED = 1, 101, 151, 201  # the first row of each kind in a rank's process
MIN_DURATION = 1e-6  # seconds: a shorter slice is invisible and cannot have an arrow
WRITTEN_BY = "course_lib"
CORE_WAIT = "waited for a core"


class TraceError(ValueError):
    """A trace cannot be written or read. The message says what to give instead."""


def write_trace(
    path: str | Path,
    ranks: int,
    spans: Sequence[Span],
    collectives: Sequence[Collective] = (),
    profiles: Sequence[Profile] = (),
    core_waits: Mapping[int, Sequence[tuple[float, float]]] | None = None,
) -> Path:
    """Write the trace file and return its path. If the name ends in .gz, it is compressed; Perfetto opens that, too."""
    events = trace_events(ranks, spans, collectives, profiles) + _counters(core_waits or {})
    facts = {"written by": WRITTEN_BY, "ranks": ranks, "paced": any(span.paced for span in spans)}
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}, separators=(",", ":"))
    data = text.encode()
    path = Path(path)
    try:
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    except OSError as error:
        raise TraceError(f"{path} cannot be written ({error.strerror}): give another file") from error
    return path


def check_can_be_written(path: str | Path) -> None:
    """Raise now, before a long run, if the trace file could not be written at the end of it."""
    path = Path(path)
    if path.is_dir():
        raise TraceError(f"{path} is a folder: give the name of a file for the trace")
    if not path.parent.is_dir():
        raise TraceError(f"{path} cannot be written (there is no folder {path.parent}): give another file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise TraceError(f"{path} cannot be written (permission denied): give another file")


def trace_events(
    ranks: int, spans: Sequence[Span], collectives: Sequence[Collective] = (), profiles: Sequence[Profile] = ()
) -> list[Event]:
    """Return all events of the trace: names of processes and rows first, then the timed events in order."""
    exposed = [span for profile in profiles for span in exposed_communication(profile)]
    rows = [
        *_rows_of_spans(spans),
        *_rows_of_collectives(collectives),
        *_rows_of_spans(exposed, EXPOSED_ROW, EXPOSED),
    ]
    named, timed = [], _arrows(rows)
    for rank in range(ranks):
        named.append(_name(rank, 0, "process_name", f"rank {rank}"))
        named.append({"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}})
    for row in rows:
        named.append(_name(row.rank, row.number, "thread_name", row.name))
        timed += row.events
    for profile in profiles:
        more_named, more_timed = _profiled(profile)
        named, timed = named + more_named, timed + more_timed
    return named + sorted(timed, key=lambda event: (event["ts"], -event.get("dur", 0.0)))


def read_trace(path: str | Path) -> list[Event]:
    """Return the events of a trace file that `write_trace` wrote."""
    advice = "give a trace that run.trace(FILE) or `course train --profile FILE` wrote"
    try:
        if not Path(path).is_file():  # reading some devices never ends
            raise FileNotFoundError(path)
        data = Path(path).read_bytes()
        trace = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        if trace["otherData"]["written by"] != WRITTEN_BY:
            raise KeyError(WRITTEN_BY)
        return trace["traceEvents"]
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {advice}") from error
    except (ValueError, KeyError, TypeError, EOFError, RecursionError) as error:
        raise TraceError(f"{path} is not a trace from this course: {advice}") from error


def spans_in(events: Sequence[Event]) -> tuple[int, list[Span]]:
    """Return the number of ranks in a trace, and its spans, including exposed communication."""
    ranks = sum(event["ph"] == "M" and event["name"] == "process_name" for event in events)
    rows = [*range(SPANS, COLLECTIVES), *range(EXPOSED_ROW, PROFILED)]
    slices = [event for event in events if event["ph"] == "X" and event["tid"] in rows]
    return ranks, [
        Span(
            event["pid"],
            event["cat"],
            event["ts"] / 1e6,
            (event["ts"] + event["dur"]) / 1e6,
            event["args"].get("paced", False),
            event["args"].get("peer"),
            event["args"].get("label", ""),
        )
        for event in slices
    ]


@dataclass(frozen=True)
class Row:
    """One row of a rank. Its events are disjoint or nested; they never partially overlap."""

    rank: int
    number: int
    name: str
    events: list[Event]


def _rows_of_spans(spans: Iterable[Span], first: int = SPANS, rows: str = "spans") -> Iterator[Row]:
    events = []
    for span in spans:
        more = {"peer": span.peer, "label": span.label or None, "paced": span.paced or None}
        name = f"{span.name} {span.label}".rstrip()
        events.append(_complete(span.rank, name, span.name, span.start, span.end, more))
    yield from _rows(events, first, rows)


def _rows_of_collectives(collectives: Sequence[Collective]) -> Iterator[Row]:
    """Yield the rows of the collectives. One whose end we did not see lasts until its last rank arrives."""
    last_arrivals: dict[tuple[str, int], float] = {}
    for call in collectives:
        last_arrivals[call.key] = max(call.start, last_arrivals.get(call.key, call.start))
    events = []
    for call in collectives:
        end = last_arrivals[call.key] if call.end is None else call.end
        more = {"group": call.group, "number": call.number, "of": call.text, "end": "seen" if call.end else "not seen"}
        events.append(_complete(call.rank, call.op, "collective", call.start, end, more))
    yield from _rows(events, COLLECTIVES, "collectives")


def _rows(events: Sequence[Event], first: int, name: str) -> Iterator[Row]:
    """Yield each rank's events in as few rows as the format allows: events in a row must nest."""
    ordered = sorted(events, key=lambda event: (event["pid"], event["ts"], -event["dur"]))
    for rank, events_of_rank in itertools.groupby(ordered, key=lambda event: event["pid"]):
        rows: list[list[Event]] = []
        open_ends_by_row: list[list[float]] = []  # per row: the ends of the open events, outermost first
        for event in events_of_rank:
            number = next((n for n, open_ends in enumerate(open_ends_by_row) if _fits(event, open_ends)), len(rows))
            if number == len(rows):
                rows.append([])
                open_ends_by_row.append([])
            open_ends_by_row[number].append(event["ts"] + event["dur"])
            rows[number].append(event | {"tid": first + number})
        for number, row in enumerate(rows):
            yield Row(rank, first + number, name if number == 0 else f"{name} ({number + 1})", row)


def _fits(event: Event, open_ends: list[float]) -> bool:
    """Return whether an event starts after or nests inside the open events of a row. Closes those that have ended."""
    while open_ends and open_ends[-1] <= event["ts"]:
        open_ends.pop()
    return not open_ends or event["ts"] + event["dur"] <= open_ends[-1]


def _arrows(rows: Sequence[Row]) -> list[Event]:
    """Return an arrow from each send to its receive: a rank's n-th send to a peer matches the peer's n-th receive."""
    events: list[Event] = []
    numbers: dict[tuple[str, int, int], Iterator[int]] = {}
    sent: dict[tuple[int, int, int], Event] = {}
    messages = [event for row in rows for event in row.events if event["cat"] in ("send", "receive")]
    messages = [event for event in messages if event["args"].get("peer") is not None]
    for event in sorted(messages, key=lambda event: (event["cat"] != "send", event["ts"])):
        rank, peer, sends = event["pid"], event["args"]["peer"], event["cat"] == "send"
        route = (rank, peer) if sends else (peer, rank)
        number = next(numbers.setdefault((event["cat"], *route), itertools.count()))
        if sends:
            sent[(*route, number)] = event
        elif (*route, number) in sent:
            flow = {"name": "message", "cat": "message", "id": f"message {route[0]}-{route[1]} {number}"}
            sent_event = sent[(*route, number)]
            events.append(flow | {"ph": "s"} | {name: sent_event[name] for name in ("pid", "tid", "ts")})
            arrived_at = event["ts"] + event["dur"] - MIN_DURATION * 1e6 / 2  # inside the slice, at its end
            events.append(flow | {"ph": "f", "bp": "e", "pid": rank, "tid": event["tid"], "ts": arrived_at})
    return events


def _profiled(profile: Profile) -> tuple[list[Event], list[Event]]:
    """Return the profiler's events as rows of the rank: the events that name the rows, and the timed events."""
    rows: dict[tuple[Any, Any], int] = {}
    names: dict[int, str] = {}
    timed = []
    for event in profile.events():
        row = rows.setdefault((event["pid"], event["tid"]), PROFILED + len(rows))
        if event["ph"] == "M":
            names[row] = str(event["args"]["name"])
            continue
        moved = {"pid": profile.rank, "tid": row, "ts": event["ts"] + profile.zero * 1e6}
        identity = {"id": f"rank {profile.rank}: {event['id']}"} if "id" in event else {}
        timed.append(event | moved | identity)
    used = {event["tid"] for event in timed}
    return [_name(profile.rank, row, "thread_name", names.get(row, "profiler")) for row in sorted(used)], timed


def _counters(core_waits: Mapping[int, Sequence[tuple[float, float]]]) -> list[Event]:
    """Return counter events for how long each rank has waited for a core. They show as a curve below its rows."""
    return [
        {"ph": "C", "name": CORE_WAIT, "pid": rank, "tid": 0, "ts": at * 1e6, "args": {"seconds": seconds}}
        for rank, samples in core_waits.items()
        for at, seconds in samples
    ]


def _complete(rank: int, name: str, kind: str, start: float, end: float, more: dict[str, Any]) -> Event:
    args = {key: value for key, value in more.items() if value is not None}
    duration = max(end - start, MIN_DURATION) * 1e6
    return {"ph": "X", "name": name, "cat": kind, "pid": rank, "tid": 0, "ts": start * 1e6, "dur": duration} | {
        "args": args
    }


def _name(rank: int, row: int, kind: str, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": rank, "tid": row, "args": {"name": name}}


EXPOSED = "exposed communication"
MIN_GAP = 1e-4  # seconds: shorter gaps count as computing, because Python needs that long between two calls
NCCL_KERNEL = re.compile(r"nccl\w*Kernel_(?:[a-z]+_)?([A-Za-z]+)")

Interval = tuple[float, float]


def exposed_communication(profile: Profile) -> list[Span]:
    """Return the spans in which this rank communicates and does not compute, labeled with the operation.

    Over gloo, a message is in flight from the call to its end; over NCCL, while its kernel runs.
    """
    messages, kernels, operators = [], [], []
    for event in profile.events():
        if event["ph"] != "X":
            continue
        start = profile.zero + event["ts"] / 1e6
        interval = start, start + event.get("dur", 0.0) / 1e6
        if op := communication_op(event):
            messages.append((*interval, op))
        elif event.get("cat") == "kernel":
            kernels.append(interval)
        elif event.get("cat") == "cpu_op" and event["name"].startswith("aten::"):
            operators.append(interval)
    computing = list(merge_intervals(kernels or operators, MIN_GAP))
    return [
        Span(profile.rank, EXPOSED, start, end, label=op)
        for start, end, op in without_overlaps(messages)
        for start, end in subtract((start, end), computing)
        if end - start > MIN_GAP
    ]


def communication_op(event: dict[str, Any]) -> str:
    """Return which collective or message a profiler event is, or "" if it is neither."""
    name = str(event["name"])
    if event.get("cat") == "user_annotation" and name.startswith("gloo:"):
        return name.removeprefix("gloo:")
    if event.get("cat") == "kernel" and (match := NCCL_KERNEL.match(name)):
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match.group(1)).lower()
    return ""


def merge_intervals(intervals: Iterable[Interval], gap: float = 0.0) -> Iterator[Interval]:
    """Merge intervals that overlap or are at most `gap` apart."""
    current: Interval | None = None
    for start, end in sorted(intervals):
        if current is None or start > current[1] + gap:
            if current is not None:
                yield current
            current = start, end
        else:
            current = current[0], max(current[1], end)
    if current is not None:
        yield current


def without_overlaps(messages: Iterable[tuple[float, float, str]]) -> Iterator[tuple[float, float, str]]:
    """Yield the messages without overlaps: time in which several are in flight counts for the first of them."""
    counted = float("-inf")
    for start, end, op in sorted(messages):
        if end > counted:
            yield max(start, counted), end, op
            counted = end


def subtract(interval: Interval, others: list[Interval]) -> Iterator[Interval]:
    """Yield the parts of `interval` outside of `others`, which must be sorted and disjoint."""
    start, end = interval
    for low, high in others:
        if high <= start:
            continue
        if low >= end:
            break
        if low > start:
            yield start, low
        start = high
    if start < end:
        yield start, end
