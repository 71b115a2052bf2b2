"""One trace of all ranks, in the trace-event format that Perfetto and chrome://tracing open.

Each rank is a process in the trace. Its rows are our spans, the collectives, and the threads and streams that PyTorch's
profiler saw. Times are in microseconds since the start of the run, on one clock.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from course_lib.launcher.tracing.recording import Collective, Profile
from course_lib.runtime.trace import Span

Event = dict[str, Any]
SPANS, COLLECTIVES, EXPOSED_ROW, PROFILED = 1, 101, 151, 201  # the first row of each kind in a rank's process
MIN_DURATION = 1e-6  # seconds: a shorter slice is invisible
WRITTEN_BY = "course_lib"
CORE_WAIT = "waited for a core"
EXPOSED = "exposed communication"
MIN_GAP = 1e-4  # seconds: shorter gaps count as computing, because Python needs that long between two calls
NCCL_KERNEL = re.compile(r"nccl\w*Kernel_(?:[a-z]+_)?([A-Za-z]+)")


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
    events = trace_events(ranks, spans, collectives, profiles)
    for rank, samples in (core_waits or {}).items():  # a curve below the rank's rows
        counter = {"ph": "C", "name": CORE_WAIT, "pid": rank, "tid": 0}
        events += [counter | {"ts": at * 1e6, "args": {"seconds": seconds}} for at, seconds in samples]
    facts = {"written by": WRITTEN_BY, "ranks": ranks, "paced": any(span.paced for span in spans)}
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}
    data, path = json.dumps(trace, separators=(",", ":")).encode(), Path(path)
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
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        because = "permission denied" if path.parent.is_dir() else f"there is no folder {path.parent}"
        raise TraceError(f"{path} cannot be written ({because}): give another file")


def trace_events(
    ranks: int, spans: Sequence[Span], collectives: Sequence[Collective] = (), profiles: Sequence[Profile] = ()
) -> list[Event]:
    """Return all events of the trace: names of processes and rows first, then the timed events in order."""
    named: list[Event] = []
    for rank in range(ranks):
        named.append(_name(rank, 0, "process_name", f"rank {rank}"))
        named.append({"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}})
    exposed = [span for profile in profiles for span in exposed_communication(profile)]
    last_arrivals = {call.key: call.start for call in sorted(collectives, key=lambda call: call.start)}
    timed: list[Event] = []
    for first, title, events in (
        (SPANS, "spans", map(_event_of_span, spans)),
        (COLLECTIVES, "collectives", [_event_of_collective(call, last_arrivals[call.key]) for call in collectives]),
        (EXPOSED_ROW, EXPOSED, map(_event_of_span, exposed)),
    ):
        in_rows = _in_rows(events, first)
        for rank, row in sorted({(event["pid"], event["tid"]) for event in in_rows}):
            number = "" if row == first else f" ({row - first + 1})"
            named.append(_name(rank, row, "thread_name", f"{title}{number}"))
        timed += in_rows
    for profile in profiles:
        of_profile = _profiled(profile)
        named += [event for event in of_profile if event["ph"] == "M"]
        timed += [event for event in of_profile if event["ph"] != "M"]
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
    ranks, spans = 0, []
    for event in events:
        ranks += event["ph"] == "M" and event["name"] == "process_name"
        if event["ph"] == "X" and event["tid"] in (*range(SPANS, COLLECTIVES), *range(EXPOSED_ROW, PROFILED)):
            start, end = event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
            spans.append(Span(event["pid"], event["cat"], start, end, **event["args"]))
    return ranks, spans


def arrivals_in(events: Sequence[Event]) -> tuple[list[Collective], dict[int, list[tuple[float, float]]]]:
    """Return the collectives in a trace, and by rank the samples of how long it had waited for a core."""
    collectives, core_waits = [], {}
    for event in events:
        rank, at, args = event["pid"], event.get("ts", 0.0) / 1e6, event.get("args", {})
        if event.get("cat") == "collective":
            collectives.append(Collective(rank, args["group"], args["number"], event["name"], at))
        elif event["ph"] == "C" and event["name"] == CORE_WAIT:
            core_waits.setdefault(rank, []).append((at, args["seconds"]))
    return collectives, core_waits


def _event_of_span(span: Span) -> Event:
    more = {"peer": span.peer, "label": span.label or None, "paced": span.paced or None}
    return _complete(span.rank, f"{span.name} {span.label}".rstrip(), span.name, span.start, span.end, more)


def _event_of_collective(call: Collective, last_arrival: float) -> Event:
    """Return the event of a collective. One whose end we did not see lasts until its last rank arrives."""
    end = last_arrival if call.end is None else call.end
    more = {"group": call.group, "number": call.number, "of": call.text, "end": "seen" if call.end else "not seen"}
    return _complete(call.rank, call.op, "collective", call.start, end, more)


def _in_rows(events: Iterable[Event], first: int) -> list[Event]:
    """Return the events, each rank's in as few rows as the format allows: events in a row must nest."""
    open_ends: dict[int, list[list[float]]] = {}  # per rank and row: the ends of the open events, outermost first
    placed = []
    for event in sorted(events, key=lambda event: (event["pid"], event["ts"], -event["dur"])):
        end, rows = event["ts"] + event["dur"], open_ends.setdefault(event["pid"], [])
        for ends in rows:
            while ends and ends[-1] <= event["ts"]:
                ends.pop()
        row = next((number for number, ends in enumerate(rows) if not ends or end <= ends[-1]), len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(end)
        placed.append(event | {"tid": first + row})
    return placed


def _profiled(profile: Profile) -> list[Event]:
    """Return the profiler's events as rows of the rank, and the names of these rows."""
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
    used = sorted({event["tid"] for event in timed})
    return timed + [_name(profile.rank, row, "thread_name", names.get(row, "profiler")) for row in used]


def _complete(rank: int, name: str, kind: str, start: float, end: float, more: dict[str, Any]) -> Event:
    args = {key: value for key, value in more.items() if value is not None}
    times = {"ts": start * 1e6, "dur": max(end - start, MIN_DURATION) * 1e6}
    return {"ph": "X", "name": name, "cat": kind, "pid": rank, "tid": 0, **times, "args": args}


def _name(rank: int, row: int, kind: str, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": rank, "tid": row, "args": {"name": name}}


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
    computing = [*sorted(kernels or operators), (math.inf, math.inf)]
    exposed, counted, first = [], -math.inf, 0
    for start, end, op in sorted(messages):
        at, counted = max(start, counted), max(counted, end)  # while several are in flight, the first one counts
        while computing[first][1] <= at:
            first += 1
        for low, high in itertools.islice(computing, first, None):
            if min(low, end) - at > MIN_GAP:
                exposed.append(Span(profile.rank, EXPOSED, at, min(low, end), label=op))
            at = max(at, high)
            if at >= end:
                break
    return exposed


def communication_op(event: dict[str, Any]) -> str:
    """Return which collective or message a profiler event is, or "" if it is neither."""
    name = str(event["name"])
    if event.get("cat") == "user_annotation" and name.startswith("gloo:"):
        return name.removeprefix("gloo:")
    if event.get("cat") == "kernel" and (match := NCCL_KERNEL.match(name)):
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match.group(1)).lower()
    return ""
