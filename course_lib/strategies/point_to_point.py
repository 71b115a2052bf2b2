"""Messages between the stages of a model that is cut in pieces: activations go forward, their gradients come back.

With a GPU per rank, NCCL carries them from memory to memory. Ranks that share a GPU talk over gloo, which can only send
what lies in host memory: there, a message is staged through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import machine


@dataclass
class PendingSend:
    """A message under way. The sender goes on; `buffer` must live until it has left."""

    buffer: Tensor
    work: dist.Work | None

    def wait(self) -> None:
        """Return when the message has left. Asking again returns at once: over gloo, a second wait would never end."""
        work, self.work = self.work, None
        if work is not None:
            work.wait()

    @property
    def done(self) -> bool:
        return self.work is None or self.work.is_completed()


@dataclass
class PendingReceive:
    """A message that is awaited."""

    buffer: Tensor
    work: dist.Work | None
    device: torch.device

    def wait(self) -> Tensor:
        """The message, on this rank's device."""
        work, self.work = self.work, None
        if work is not None:
            work.wait()
        return self.buffer.to(self.device)


def send(tensor: Tensor, to: int, tag: int = 0, group: dist.ProcessGroup | None = None) -> PendingSend:
    """Begin to send a tensor to rank `to`. An LSTM's outputs may be views: a message is always contiguous.

    An empty tensor is not sent: the receiver knows its shape, and so all there is to know.
    """
    tensor = tensor.detach().contiguous()
    buffer = tensor if can_send_from(tensor.device) else tensor.cpu()
    return PendingSend(buffer, _begin(dist.isend, buffer, to, tag, group))


def receive(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    source: int,
    tag: int = 0,
    group: dist.ProcessGroup | None = None,
) -> PendingReceive:
    """Begin to receive a tensor of that shape from rank `source`."""
    buffer = torch.empty(shape, dtype=dtype, device=device if can_send_from(device) else "cpu")
    return PendingReceive(buffer, _begin(dist.irecv, buffer, source, tag, group), device)


def _begin(
    operation: Callable[..., dist.Work | None], buffer: Tensor, peer: int, tag: int, group: dist.ProcessGroup | None
) -> dist.Work | None:
    """Post one message.

    Alone, `isend` and `irecv` make NCCL a communicator for each pair of ranks. As a batch, even of one, they use the
    group's own, in which messages keep the order in which they are posted: the caller sees to it that all ranks post
    them in one order.
    """
    if not buffer.numel():
        return None
    if not buffer.is_cuda:
        return operation(buffer, peer, group, tag)
    (work,) = dist.batch_isend_irecv([dist.P2POp(operation, buffer, peer, group)])
    return work


def connect(pairs: Iterable[tuple[int, int]], group: dist.ProcessGroup | None = None) -> None:
    """Have each pair, (from, to), exchange one message in the group, in the order given; for all its ranks to call.

    NCCL makes a communicator at its first use, for which all its ranks must meet, and connects two ranks at their first
    message, for which the host blocks until both are there. In the middle of a schedule, two ranks could block on each
    other with different messages.
    """
    if "cuda:nccl" not in dist.get_backend_config(group):
        return
    number, rank = torch.zeros(1, device=machine.device()), dist.get_rank()
    dist.all_reduce(number, group=group)
    for source, to in pairs:
        if rank == source:
            send(number, to, group=group).wait()
        elif rank == to:
            receive((1,), number.dtype, number.device, source, group=group).wait()
    torch.cuda.synchronize()


def can_send_from(device: torch.device) -> bool:
    """Whether the process group sends what lies on this device as it is."""
    return device.type == "cpu" or "cuda:nccl" in dist.get_backend_config()


def gradient_of(tensor: Tensor) -> Tensor:
    """What to send back for a tensor that was received: zeros if nothing behind it is trained."""
    return tensor.grad if tensor.grad is not None else torch.zeros_like(tensor)
