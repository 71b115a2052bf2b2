"""Point-to-point messages between the stages of a split model: activations go forward, their gradients come back.

With a GPU per rank, NCCL copies them from GPU memory to GPU memory. Ranks that share a GPU use gloo, which can only
send from host memory, so messages are staged through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.runtime import machine


@dataclass
class PendingMessage:
    """A message being sent or received. `buffer` must stay alive until then."""

    buffer: Tensor
    work: dist.Work | None
    device: torch.device

    def wait(self) -> Tensor:
        """Wait until the message has been sent or received, and return it. Gloo would hang on a second wait."""
        work, self.work = self.work, None
        if work is not None:
            work.wait()
        return self.buffer.to(self.device)

    @property
    def is_completed(self) -> bool:
        return self.work is None or self.work.is_completed()


def send(tensor: Tensor, to: int, tag: int = 0, group: dist.ProcessGroup | None = None) -> PendingMessage:
    """Start sending a tensor to rank `to`. It is made contiguous first, because an LSTM's outputs may be views.

    An empty tensor is not sent, because the receiver already knows its shape.
    """
    tensor = tensor.detach().contiguous()
    buffer = tensor if can_send_from(tensor.device) else tensor.cpu()
    return PendingMessage(buffer, _begin(dist.isend, buffer, to, tag, group), buffer.device)


def receive(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    source: int,
    tag: int = 0,
    group: dist.ProcessGroup | None = None,
) -> PendingMessage:
    """Start receiving a tensor of this shape from rank `source`."""
    buffer = torch.empty(shape, dtype=dtype, device=device if can_send_from(device) else "cpu")
    return PendingMessage(buffer, _begin(dist.irecv, buffer, source, tag, group), device)


def _begin(
    operation: Callable[..., dist.Work | None], buffer: Tensor, peer: int, tag: int, group: dist.ProcessGroup | None
) -> dist.Work | None:
    """Post one message.

    Alone, `isend` and `irecv` make NCCL create a communicator for each pair of ranks. In a batch, even of one, they use
    the group's communicator, which keeps messages in the order in which they are posted. The caller makes sure that all
    ranks post them in the same order.
    """
    if not buffer.numel():
        return None
    if not buffer.is_cuda:
        return operation(buffer, peer, group, tag)
    (work,) = dist.batch_isend_irecv([dist.P2POp(operation, buffer, peer, group)])
    return work


def connect(pairs: Iterable[tuple[int, int]], group: dist.ProcessGroup | None = None) -> None:
    """Exchange one message between each (from, to) pair in the group, in this order. All ranks in it must call this.

    NCCL creates a communicator when it is first used, by all of its ranks together. It connects two ranks at their
    first message, and blocks the host until both have posted it. In the middle of a schedule, two ranks could block
    each other with different messages.
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
    """Return whether the process group can send directly from this device."""
    return device.type == "cpu" or "cuda:nccl" in dist.get_backend_config()


def gradient_of(tensor: Tensor) -> Tensor:
    """Return the gradient to send back for a received tensor: zeros if no trained weight depends on it."""
    return tensor.grad if tensor.grad is not None else torch.zeros_like(tensor)
