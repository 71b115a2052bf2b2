"""Collectives over a slower network: `paced_network` makes this machine's take as long as they would over a given link.

`Network` predicts them for nodes with several GPUs each, where some ranks are closer than others (lesson 07).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from course_lib.messages.link import Link
from course_lib.runtime import private_doors, trace

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Sent:
    """The handle of an all-reduce in flight, like the one that `dist.all_reduce(tensor, async_op=True)` returns."""

    future: torch.futures.Future[Any]  # its stub takes no exception for a list of tensors

    def wait(self) -> bool:
        self.future.wait()
        return True

    def is_completed(self) -> bool:
        return self.future.done()

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        return self.future


@contextmanager
def paced_network(link: Link) -> Iterator[None]:
    """Make collectives on this rank take as long as a ring over `link`, and record them as `communication`.

    The collectives are `dist.all_reduce`, and the all-gather and reduce-scatter of one tensor, each half an all-reduce.
    They run one after another, in the order in which they start, while the caller continues. This intercepts only calls
    from Python: for DistributedDataParallel's buckets, register a communication hook that calls `dist.all_reduce`.
    """
    import torch.distributed as dist

    gather, scatter = private_doors.single_tensor_collectives()
    real = {name: getattr(dist, name) for name in ("all_reduce", gather, scatter)}
    with ThreadPoolExecutor(max_workers=1) as line:
        for name, function in real.items():
            setattr(dist, name, _paced(function, link, 1.0 if name == "all_reduce" else 0.5, line))
        try:
            yield
        finally:
            for name, function in real.items():
                setattr(dist, name, function)


def _paced(real: Callable[..., Any], link: Link, share: float, line: ThreadPoolExecutor) -> Callable[..., Any]:
    """Return a collective that takes this share of an all-reduce's time over `link`, in its turn on `line`."""
    import torch
    import torch.distributed as dist

    call = inspect.signature(real)

    def paced(*arguments: Any, **options: Any) -> Any:
        bound = call.bind(*arguments, **options)
        is_async = bound.arguments.pop("async_op", False)
        tensors = [value for value in bound.arguments.values() if isinstance(value, torch.Tensor)]
        size, ranks = max(tensor.nbytes for tensor in tensors), dist.get_world_size(bound.arguments.get("group"))
        seconds = share * link.all_reduce_seconds(size, ranks)
        sent, label = Sent(torch.futures.Future()), trace.recorder.label

        def send() -> None:
            try:
                with trace.span("communication", at_least=seconds, label=label):
                    real(*bound.args, **bound.kwargs)
                sent.future.set_result(tensors[:1])
            except Exception as error:
                sent.future.set_exception(error)  # pyright: ignore[reportArgumentType]

        line.submit(send)
        return sent if is_async else sent.wait() and None

    return paced


def sent_by(messages: Iterable[tuple[float, float]]) -> float:
    """Return when the last of these messages, (ready, seconds) in sending order, is done; 0 if there are none."""
    free = 0.0
    for ready, seconds in messages:
        free = max(free, ready) + seconds
    return free
