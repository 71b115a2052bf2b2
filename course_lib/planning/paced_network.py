"""A network of a known pace: real all-reduces that take at least as long as a given link would.

Ranks on one machine exchange gradients through its memory, with the cores that also compute. What a message costs
and what hides it cannot be seen there. Inside `paced_network` the very same calls are made, and each is held until its
time is over, one message after another, beside the computation: as on a network of one's own.
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
    """An all-reduce on its way: what `dist.all_reduce(tensor, async_op=True)` returns."""

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
    """On this rank, `dist.all_reduce` takes as long as a ring over `link`, and is recorded as `communication`.

    Messages go one after another, in the order in which they are begun, while the caller goes on. Only calls from
    Python are seen: DistributedDataParallel's buckets come through here with a communication hook that calls
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
