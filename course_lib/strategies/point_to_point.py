"""Messages between the stages of a model that is cut in pieces: activations go forward, their gradients come back.

With a GPU per rank, NCCL carries them from memory to memory. Ranks that share a GPU talk over gloo, which can only send
what lies in host memory: there, a message is staged through it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


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
    return PendingSend(buffer, dist.isend(buffer, to, group, tag) if buffer.numel() else None)


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
    return PendingReceive(buffer, dist.irecv(buffer, source, group, tag) if buffer.numel() else None, device)


def can_send_from(device: torch.device) -> bool:
    """Whether the process group sends what lies on this device as it is."""
    return device.type == "cpu" or "cuda:nccl" in dist.get_backend_config()


def gradient_of(tensor: Tensor) -> Tensor:
    """What to send back for a tensor that was received: zeros if nothing behind it is trained."""
    return tensor.grad if tensor.grad is not None else torch.zeros_like(tensor)
