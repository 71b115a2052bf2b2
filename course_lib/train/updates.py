"""What goes on around the updates of a job: compiling, waits for input, a profile, and the request to stop."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.core.batch import Batch
from course_lib.core.model import Recurrent, SequenceModel
from course_lib.launcher.tracing.recording import profiled
from course_lib.one_device.loop import Update
from course_lib.runtime import stop, trace

SKIPPED = 3  # updates: the first ones allocate buffers, and are slow
PROFILED = 5
INPUT_WAIT = "input wait"
REASONS = ("", "the time limit", *stop.SIGNALS)


def compile_blocks(model: SequenceModel) -> None:
    """Let every block except LSTM layers compile its forward pass at its first call. Names and weights don't change."""
    for _, block in model.numbered():
        if not isinstance(block, Recurrent):
            block.forward = torch.compile(block.forward)


def with_input_waits(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the same batches, and record how long the loop waits for each as a span, `input wait`.

    The GPU may still be busy with the previous update. Only the part of a wait that outlasts this work costs time.
    """
    reader = iter(batches)
    while True:
        with trace.span(INPUT_WAIT, on_host=True):
            batch = next(reader, None)
        if batch is None:
            return
        yield batch


def profile_some(updates: Iterator[Update], total: int) -> Iterator[Update]:
    """Yield the same `total` updates, and profile a few of them, after the first ones if there are enough.

    The profile includes what the caller does between two updates.
    """
    yield from itertools.islice(updates, max(0, min(SKIPPED, total - PROFILED)))
    with profiled():
        yield from itertools.islice(updates, PROFILED)
    yield from updates


class StopAgreement:
    """Lets the ranks agree to stop, after a signal or when their time is up. Every rank must ask after every update.

    A signal may reach one rank, or all of them at different moments. So after each update an all-reduce combines the
    ranks' flags, and every rank acts on the result. The all-reduce runs during the next update, so no rank waits for
    it, and the ranks stop one update later.
    """

    def __init__(self, time_limit: float | None = None) -> None:
        self._deadline = None if time_limit is None else time.monotonic() + time_limit
        # A separate gloo group on the CPU: reading a flag from a GPU would wait for all of its queued work.
        self._group = dist.new_group(backend="gloo") if dist.get_world_size() > 1 else None
        self._pending: tuple[dist.Work, Tensor] | None = None

    def after_update(self) -> str:
        """Return the reason to stop now, or an empty string to continue: the same on every rank."""
        here = REASONS.index(stop.request.reason or "")
        if not here and self._deadline is not None and time.monotonic() >= self._deadline:
            here = REASONS.index("the time limit")
        if self._group is None:
            return REASONS[here]
        reason = self.close()
        flag = torch.tensor([here], dtype=torch.uint8)
        work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None  # this rank is in the group
        self._pending = work, flag
        return reason

    def close(self) -> str:
        """Wait for the last flags, and return their reason: a rank that exits earlier would break the connection."""
        pending, self._pending = self._pending, None
        if pending is None:
            return ""
        work, flag = pending
        work.wait()
        return REASONS[int(flag)]
