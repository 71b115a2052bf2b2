"""When to stop before the last update: after a signal, or when the time is up, and on all ranks after the same update.

A signal may reach one rank, or all of them at different moments. So after each update the ranks tell each other
whether they were asked, and only what all have heard counts. The flags of one update travel while the next one is
computed: nobody waits for them, and the ranks stop one update later.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.launchers.process import stop

REASONS = ("", "the time limit", *stop.SIGNALS)


class StopAgreement:
    """The ranks' common answer to whether to stop, asked for by every rank after every update."""

    def __init__(self, time_limit: float | None = None) -> None:
        self._deadline = None if time_limit is None else time.monotonic() + time_limit
        # A group of its own, of processors: to read a flag from a GPU is to wait for all that the GPU has to do.
        self._group = dist.new_group(backend="gloo") if dist.get_world_size() > 1 else None
        self._on_its_way: tuple[dist.Work, Tensor] | None = None

    def after_update(self) -> str:
        """Why to stop now, the same on every rank; empty to go on."""
        if self._group is None:
            return REASONS[self._asked()]
        heard = self._receive()
        flag = torch.tensor([self._asked()], dtype=torch.uint8)
        work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None  # this rank is in the group
        self._on_its_way = work, flag
        return REASONS[heard]

    def close(self) -> None:
        """Wait for the last flags: a rank that leaves earlier would break the others' connection."""
        self._receive()

    def _receive(self) -> int:
        if self._on_its_way is None:
            return 0
        work, flag = self._on_its_way
        self._on_its_way = None
        work.wait()
        return int(flag)

    def _asked(self) -> int:
        """Whether this rank was asked to stop, as a place in REASONS."""
        if stop.request.reason:
            return REASONS.index(stop.request.reason)
        return int(self._deadline is not None and time.monotonic() >= self._deadline)
