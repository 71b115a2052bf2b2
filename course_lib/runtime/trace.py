"""Record spans on a rank: what it was doing, and when.

    with trace.span("forward"):
        out = model(batch)

A launch returns every rank's spans as `run.spans`, and `draw_timeline(run)` draws them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Span:
    """One interval of a rank's time, in seconds.

    `paced` is true if the span was stretched to a fixed length. `peer` is the rank it sent to or received from.
    `label` names its layer or bucket.
    """

    rank: int
    name: str
    start: float
    end: float
    paced: bool = False
    peer: int | None = None
    label: str = ""

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def since(self, zero: float) -> Span:
        """Return the same span with times relative to `zero`."""
        return replace(self, start=self.start - zero, end=self.end - zero)


MAX_SPANS = 100_000  # per rank: a plot with more is unreadable, and a long run must not fill up memory


class Recorder:
    """Collects the spans of one process. Appending to a list is atomic, so threads may share it.

    The times of a GPU span are known only once the GPU has reached its end. Until they are read, it is stored as two
    CUDA events.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.on = False
        self.label = ""  # for the spans that start now
        self.core_waits: list[tuple[float, float]] = []  # (time, seconds the main thread had waited for a core by then)
        self._spans: list[Span | GpuSpan] = []
        self._reading = threading.Lock()

    @property
    def spans(self) -> list[Span]:
        """The recorded spans. Waits until the GPU has reached the end of the last one."""
        self.read()
        return self._spans  # type: ignore[return-value]  # read() has converted every GpuSpan

    @spans.setter
    def spans(self, spans: list[Span]) -> None:
        self._spans = list(spans)

    def start(self, rank: int) -> None:
        """Clear the recording and start recording as `rank`."""
        self.rank, self._spans, self.on, self.label, self.core_waits = rank, [], True, "", []

    def look_at_core(self) -> None:
        """Record how long the main thread has waited for a core so far. It takes ten microseconds."""
        if self.on and threading.current_thread() is threading.main_thread():
            with suppress(OSError, ValueError, IndexError), open("/proc/thread-self/schedstat", "rb") as file:
                self.core_waits.append((time.monotonic(), int(file.read().split()[1]) / 1e9))

    def add(self, span: Span | GpuSpan) -> None:
        """Store a span. Recording stops after the first `MAX_SPANS` spans."""
        if self.on:
            self._spans.append(span)
            self.on = len(self._spans) < MAX_SPANS

    def read(self, *, wait: bool = True) -> None:
        """Turn CUDA events into times. Without `wait`, drop spans whose end the GPU has not reached."""
        with self._reading:
            if not any(isinstance(recorded, GpuSpan) for recorded in self._spans):
                return
            read: list[Span | GpuSpan] = []
            for recorded in self._spans:
                try:
                    if isinstance(recorded, Span):
                        read.append(recorded)
                    elif wait or recorded.end.query():
                        recorded.end.synchronize()  # this event only, not a receive whose sender hasn't sent yet
                        start, end = _clock.seconds(recorded.start), _clock.seconds(recorded.end)
                        read.append(replace(recorded.span, start=start, end=end))
                except RuntimeError:  # the GPU has failed, so the times of its last work are lost
                    if wait:
                        raise
            self._spans[:] = read


@dataclass(frozen=True)
class GpuSpan:
    """A span whose `start` and `end` are CUDA events on the stream that ran its kernels."""

    span: Span
    start: torch.cuda.Event
    end: torch.cuda.Event


class GpuClock:
    """Converts CUDA events to times on this process's clock.

    It adds up the time from each event to the next, in the order they are read. CUDA reports the milliseconds between
    two events as a float32, which is precise enough over a second but not over an hour.
    """

    def __init__(self) -> None:
        self._latest: tuple[torch.cuda.Event, float] | None = None

    def event(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """Record an event on the stream; the first one synchronizes the two clocks."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        if self._latest is None:
            event.synchronize()
            self._latest = event, time.monotonic()
        return event

    def seconds(self, event: torch.cuda.Event) -> float:
        """Return the time at which the GPU reached this event."""
        assert self._latest is not None, "an event of another clock"
        before, at = self._latest
        self._latest = event, at + before.elapsed_time(event) / 1e3
        return self._latest[1]


_clock = GpuClock()
recorder = Recorder()  # on for ranks launched from a notebook; elsewhere, only inside `recording()`


@contextmanager
def recording() -> Iterator[list[Span]]:
    """Record the spans of this process without a launch. The yielded list is filled when the block ends."""
    spans: list[Span] = []
    started_at = time.monotonic()
    outer, outer_on = recorder.spans, recorder.on
    recorder.spans, recorder.on = [], True
    try:
        yield spans
    finally:
        spans += [span.since(started_at) for span in recorder.spans]
        recorder.spans, recorder.on = outer, outer_on


@contextmanager
def paused() -> Iterator[None]:
    """Record nothing inside the block. Use it for runs too long to look at span by span."""
    was_on, recorder.on = recorder.on, False
    try:
        yield
    finally:
        recorder.on = was_on


def keep_fastest(work: Callable[[], object], times: int) -> None:
    """Call `work` several times, and keep only the spans of the fastest call: other programs can only slow it down."""
    fastest, kept = float("inf"), []
    for _ in range(times):
        recorder.spans = []
        work()
        spans = recorder.spans
        seconds = max(span.end for span in spans) - min(span.start for span in spans) if spans else 0.0
        if seconds < fastest:
            fastest, kept = seconds, spans
    recorder.spans = kept


@contextmanager
def labelled(label: object) -> Iterator[None]:
    """Label the spans that start inside the block, for example with a layer or bucket. Plots show the label."""
    before, recorder.label = recorder.label, str(label)
    try:
        yield
    finally:
        recorder.label = before


def span(
    name: str, at_least: float = 0.0, peer: int | None = None, label: str | None = None, *, on_host: bool = False
) -> AbstractContextManager[None]:
    """Record the time the block takes. With `at_least`, sleep until it has taken that many seconds.

    `label` defaults to the label of the enclosing `labelled` block.

    `draw_messages(run)` draws the spans named `send` and `receive` that have a `peer`.

    With more ranks than cores, ranks wait for a core and their times are misleading. Sleeping needs no core, so blocks
    of a fixed length overlap as they would if every rank had a device. Such a span is marked *paced*.

    On a GPU, the span times the block's *kernels*, with CUDA events on the current stream. The rank does not wait
    for them and still runs ahead of its GPU, unless the span is paced: then it waits for the stream. An `on_host` span
    times the rank's Python code, whatever its GPU is doing.
    """
    if at_least < 0:
        raise ValueError(f"at_least={at_least}: a span lasts a number of seconds, 0 or more")
    if not recorder.on and not at_least:
        return nullcontext()
    torch, stream = sys.modules.get("torch"), None
    if not on_host and torch is not None and torch.cuda.is_initialized():
        stream = torch.cuda.current_stream()
    recorded = Span(recorder.rank, name, 0.0, 0.0, at_least > 0, peer, recorder.label if label is None else label)
    return _timed(recorded, at_least, stream)


@contextmanager
def _timed(span: Span, at_least: float, stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Time the block: with CUDA events on the `stream`, if there is one, but a paced block with the clock."""
    if stream is not None and not at_least:
        begin = _clock.event(stream)
        try:
            yield
        finally:
            recorder.add(GpuSpan(span, begin, _clock.event(stream)))
        return
    if stream is not None:
        stream.synchronize()
    recorder.look_at_core()
    start = time.monotonic()
    try:
        yield
    finally:
        if stream is not None:
            stream.synchronize()  # not the whole device: a receive posted earlier may be waiting for this rank
        if (remaining := start + at_least - time.monotonic()) > 0:
            time.sleep(remaining)
        recorder.add(replace(span, start=start, end=time.monotonic()))
        recorder.look_at_core()
