"""Spans recorded on a rank: what it was doing, from when to when.

    with trace.span("forward"):
        out = model(batch)

A launch hands every rank's spans back as `run.spans`, and `pictures.timeline(run)` draws them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Span:
    """One stretch of a rank's time, in seconds.

    `paced` says that it was stretched to a fixed length, `peer` which rank it sent to or received from, `label` of
    which layer or bucket it was.
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
        """The same span, with times counted from `zero`."""
        return replace(self, start=self.start - zero, end=self.end - zero)


MOST_SPANS = 100_000  # of one rank: a picture of more shows nothing, and a long run must not grow


class Recorder:
    """Collects the spans of one process. Appending to a list is atomic, so threads may share it.

    A span on a GPU is known only when the GPU has come that far: it is kept as two events, and read when asked for.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.on = False
        self.label = ""  # of the spans that begin now
        self.core_waits: list[tuple[float, float]] = []  # (when, seconds that the main thread had waited for a core)
        self._spans: list[Span | GpuSpan] = []
        self._reading = threading.Lock()

    @property
    def spans(self) -> list[Span]:
        """What was recorded. Waits until the GPU has reached the end of the last span."""
        self.read()
        return self._spans  # type: ignore[return-value]  # every GpuSpan has been read

    @spans.setter
    def spans(self, spans: list[Span]) -> None:
        self._spans = list(spans)

    def start(self, rank: int) -> None:
        """Forget what was recorded and record as `rank` from now on."""
        self.rank, self._spans, self.on, self.label, self.core_waits = rank, [], True, "", []

    def look_at_core(self) -> None:
        """Take down how long the main thread has waited for a core by now; one reading takes ten microseconds."""
        if self.on and threading.current_thread() is threading.main_thread() and (waited := core_wait()) is not None:
            self.core_waits.append((time.monotonic(), waited))

    def add(self, span: Span | GpuSpan) -> None:
        """Keep a span, up to a limit: the first ones stay."""
        if self.on:
            self._spans.append(span)
            self.on = len(self._spans) < MOST_SPANS

    def read(self, *, wait: bool = True) -> None:
        """Turn events into times. Without `wait`, a span whose end the GPU has not reached is left out."""
        with self._reading:
            if any(isinstance(span, GpuSpan) for span in self._spans):
                self._spans[:] = [span for one in self._spans if (span := _read(one, wait)) is not None]


@dataclass(frozen=True)
class GpuSpan:
    """A span whose `start` and `end` are CUDA events on the stream that did its work."""

    span: Span
    start: torch.cuda.Event
    end: torch.cuda.Event


def _read(span: Span | GpuSpan, wait: bool) -> Span | None:
    if isinstance(span, Span):
        return span
    try:
        if wait:
            span.end.synchronize()  # for this event alone, and never for a message that nobody has sent yet
        elif not span.end.query():
            return None
        return replace(span.span, start=_clock.seconds(span.start), end=_clock.seconds(span.end))
    except RuntimeError:  # the GPU has failed: what it did last is not known
        if wait:
            raise
        return None


class GpuClock:
    """The time of CUDA events by this process's clock.

    Times are added up from event to event, in the order of reading: the milliseconds between two events are a float32,
    which is exact enough for a stretch of a second, and not for one of an hour.
    """

    def __init__(self) -> None:
        self._latest: tuple[torch.cuda.Event, float] | None = None

    def set_if_new(self, stream: torch.cuda.Stream) -> None:
        """Compare the two clocks, once."""
        if self._latest is None:
            import torch

            event = torch.cuda.Event(enable_timing=True)
            event.record(stream)
            event.synchronize()
            self._latest = event, time.monotonic()

    def seconds(self, event: torch.cuda.Event) -> float:
        """When the GPU came to this event."""
        assert self._latest is not None, "an event was recorded before the clock was set"
        before, at = self._latest
        self._latest = event, at + before.elapsed_time(event) / 1e3
        return self._latest[1]


_clock = GpuClock()
recorder = Recorder()  # on a rank that a notebook launched it is on; elsewhere, inside `recording()`


@contextmanager
def recording() -> Iterator[list[Span]]:
    """Record the spans of this process, without a launch. The list is filled when the block ends."""
    spans: list[Span] = []
    began = time.monotonic()
    outer, outer_on = recorder.spans, recorder.on
    recorder.spans, recorder.on = [], True
    try:
        yield spans
    finally:
        spans += [span.since(began) for span in recorder.spans]
        recorder.spans, recorder.on = outer, outer_on


@contextmanager
def paused() -> Iterator[None]:
    """Record nothing inside the block: for runs so long that nobody looks at their spans."""
    was_on, recorder.on = recorder.on, False
    try:
        yield
    finally:
        recorder.on = was_on


@contextmanager
def labelled(label: object) -> Iterator[None]:
    """Spans that begin inside the block say of what they are: of which layer, or bucket. Pictures show it."""
    before, recorder.label = recorder.label, str(label)
    try:
        yield
    finally:
        recorder.label = before


def span(
    name: str, at_least: float = 0.0, peer: int | None = None, label: str | None = None, *, on_host: bool = False
) -> AbstractContextManager[None]:
    """Record the time the block takes. With `at_least`, sleep until it has taken that many seconds.

    Its label is the one given, or that of the `labelled` block around it.

    Spans named `send` and `receive` with a `peer` are what `pictures.messages(run)` draws.

    With more ranks than cores, ranks wait for a core and their times lie. A sleep needs no core: blocks
    of a fixed length overlap as they would on devices of their own. Such a span is marked *paced*.

    On a GPU, the block's *kernels* are timed, by CUDA events on the current stream: nobody waits for them, and the
    rank runs ahead of its GPU as it does unrecorded. A span that is paced waits for that stream. One that is `on_host`
    times what the rank's Python does, whatever its GPU is busy with.
    """
    if at_least < 0:
        raise ValueError(f"at_least={at_least}: a span lasts a number of seconds, 0 or more")
    if not recorder.on and not at_least:
        return NOTHING
    return _timed(name, at_least, peer, recorder.label if label is None else label, on_host)


NOTHING = nullcontext()


def _timed(name: str, at_least: float, peer: int | None, label: str, on_host: bool) -> AbstractContextManager[None]:
    span = Span(recorder.rank, name, 0.0, 0.0, at_least > 0, peer, label)
    stream = None if on_host else _stream()
    if stream is None:
        return _timed_by_clock(span, at_least, None)
    return _timed_by_clock(span, at_least, stream) if at_least else _timed_by_events(span, stream)


@contextmanager
def _timed_by_clock(span: Span, at_least: float, stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Time the block by this process's clock; if it has kernels on a stream, with them."""
    if stream is not None:
        stream.synchronize()
    recorder.look_at_core()
    start = time.monotonic()
    try:
        yield
    finally:
        if stream is not None:
            stream.synchronize()  # and not the device: a receive that was posted ahead may wait for this very rank
        remaining = start + at_least - time.monotonic()
        if remaining > 0:
            time.sleep(remaining)
        recorder.add(replace(span, start=start, end=time.monotonic()))
        recorder.look_at_core()


@contextmanager
def _timed_by_events(span: Span, stream: torch.cuda.Stream) -> Iterator[None]:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    _clock.set_if_new(stream)
    start.record(stream)
    try:
        yield
    finally:
        end.record(stream)
        recorder.add(GpuSpan(span, start, end))


def core_wait() -> float | None:
    """Seconds in which this thread could have run and was not given a core; None where the kernel does not say."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _stream() -> Any:
    """The stream on which this thread's kernels run, if this process has started a GPU."""
    torch = sys.modules.get("torch")
    return torch.cuda.current_stream() if torch is not None and torch.cuda.is_initialized() else None
