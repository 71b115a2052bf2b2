"""From the host to the GPU while it computes: copies on a stream of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


def copied_ahead(tensors: Iterable[Tensor], device: torch.device | str) -> Iterator[Tensor]:
    """Each tensor on `device`; while the caller computes with one, the next is already on its way.

    Work on a GPU is done in the order in which it was given to a *stream*. A copy on the stream that computes waits for
    what was given to it before; on a second stream it runs beside it, if the tensor lies in pinned memory. On a CPU
    there is nothing to copy, and the tensors come as they are.
    """
    if torch.device(device).type != "cuda":
        yield from tensors
        return
    copying, computing = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    ahead = None
    for tensor in tensors:
        arrived = _hand_over(ahead, copying, computing)
        with torch.cuda.stream(copying):
            ahead = tensor.to(device, non_blocking=True)
        if arrived is not None:
            yield arrived
    last = _hand_over(ahead, copying, computing)
    if last is not None:
        yield last


def _hand_over(tensor: Tensor | None, copying: torch.cuda.Stream, computing: torch.cuda.Stream) -> Tensor | None:
    """The tensor, safe to compute with: what is computed from now on waits until it has been copied."""
    computing.wait_stream(copying)
    if tensor is not None:
        tensor.record_stream(computing)  # its memory is not given away before this stream, too, is done with it
    return tensor
