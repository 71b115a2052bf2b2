"""A few updates of a long run under PyTorch's profiler, for `course train --profile FILE`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from course_lib import trace
from course_lib.data import Batch
from course_lib.launchers.tracing.profiler import profiled
from course_lib.training.loop import Update

SKIPPED = 3  # updates: the first ones make buffers, and are slow
PROFILED = 5
INPUT_WAIT = "input wait"


def with_input_waits(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same batches. How long the loop waits for each is a span, `input wait`, where spans are recorded.

    The GPU may still be busy with the update before: only what it does not cover costs time.
    """
    reader = iter(batches)
    while True:
        with trace.span(INPUT_WAIT, on_host=True):
            batch = next(reader, None)
        if batch is None:
            return
        yield batch


def profile_some(updates: Iterator[Update], total: int) -> Iterator[Update]:
    """The same updates, of which there are `total`; a few of them are profiled, if possible not the first ones.

    What the caller does from one update to the next is in the profile, too.
    """
    yield from islice(updates, max(0, min(SKIPPED, total - PROFILED)))
    with profiled():
        yield from islice(updates, PROFILED)
    yield from updates
