"""Spans recorded on a rank: what it was doing, from when to when.

    with trace.span("forward"):
        out = model(batch)

A launch hands every rank's spans back as `run.spans`, and `pictures.timeline(run)` draws them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace


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
    """Collects the spans of one process. Appending to a list is atomic, so threads may share it."""

    def __init__(self) -> None:
        self.rank = 0
        self.spans: list[Span] = []
        self.on = False
        self.label = ""  # of the spans that begin now

    def start(self, rank: int) -> None:
        """Forget what was recorded and record as `rank` from now on."""
        self.rank, self.spans, self.on, self.label = rank, [], True, ""

    def add(self, span: Span) -> None:
        """Keep a span, up to a limit: the first ones stay."""
        if self.on:
            self.spans.append(span)
            self.on = len(self.spans) < MOST_SPANS


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

    A span waits for the GPU, when it begins and when it ends. One that is `on_host` does not: it times what the
    rank's Python does while its GPU may be busy.
    """
    if at_least < 0:
        raise ValueError(f"at_least={at_least}: a span lasts a number of seconds, 0 or more")
    if not recorder.on and not at_least:
        return NOTHING
    return _timed(name, at_least, peer, recorder.label if label is None else label, on_host)


NOTHING = nullcontext()


@contextmanager
def _timed(name: str, at_least: float, peer: int | None, label: str, on_host: bool) -> Iterator[None]:
    _wait_for_gpu(on_host)
    start = time.monotonic()
    try:
        yield
    finally:
        _wait_for_gpu(on_host)
        remaining = start + at_least - time.monotonic()
        if remaining > 0:
            time.sleep(remaining)
        recorder.add(Span(recorder.rank, name, start, time.monotonic(), at_least > 0, peer, label))


def _wait_for_gpu(on_host: bool) -> None:
    """Kernels run behind the caller's back: without this, a span would time their launch."""
    torch = sys.modules.get("torch")
    if not on_host and torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
