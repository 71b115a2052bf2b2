"""A network with a known pace: real all-reduces that take at least as long as they would over a given link.

Ranks on one machine exchange gradients through memory, using the cores that also compute. You cannot see there what a
message costs or what hides it. Inside `paced_network` the same calls are made, but each one completes only when its
time is up, one message after another, in parallel with the computation: as on a dedicated network.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import trace
from course_lib.planning.network import Link


class Sent:
    """The handle of an all-reduce in flight, as `dist.all_reduce(tensor, async_op=True)` returns it."""

    def __init__(self) -> None:
        self.future = torch.futures.Future()

    def wait(self) -> bool:
        self.future.wait()
        return True

    def is_completed(self) -> bool:
        return self.future.done()

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        return self.future


@contextmanager
def paced_network(link: Link) -> Iterator[None]:
    """Make `dist.all_reduce` on this rank take as long as a ring over `link`, and record it as `communication`.

    Messages go one after another, in the order in which they start, while the caller continues. This intercepts only
    calls from Python: for DistributedDataParallel's buckets, register a communication hook that calls
    `dist.all_reduce`.
    """
    real = dist.all_reduce

    def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        seconds = link.all_reduce_seconds(tensor.numel() * tensor.element_size(), dist.get_world_size(group))
        sent, label = Sent(), trace.recorder.label

        def send() -> None:
            try:
                with trace.span("communication", at_least=seconds, label=label):
                    real(tensor, op, group=group)
                sent.future.set_result([tensor])
            except Exception as error:
                sent.future.set_exception(error)

        line.submit(send)
        return sent if async_op else sent.wait() and None

    with ThreadPoolExecutor(max_workers=1) as line:
        dist.all_reduce = all_reduce
        try:
            yield
        finally:
            dist.all_reduce = real
