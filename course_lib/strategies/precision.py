"""Half precision: the forward pass computes in it; weights, their gradients and the loss stay in float32."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.data import Batch
from course_lib.lstm.model import Loss

PRECISIONS: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

FIRST_SCALE, GROWTH_INTERVAL = 2.0**16, 2000  # as `torch.amp.GradScaler` has them


class GradientScaler:
    """Keeps small gradients from vanishing in float16: the loss is multiplied by `scale`, and the gradients divided.

    An update whose gradients have overflowed is left out, and the next scale is half as large; after
    GROWTH_INTERVAL updates without one it is twice as large. `torch.amp.GradScaler` does the same with the gradients
    that one rank sees. Where a rank has only a part of the model, all ranks must leave out the same updates.
    """

    def __init__(self) -> None:
        self.scale, self.updates_since_overflow = FIRST_SCALE, 0

    def unscale(self, gradients: Sequence[Tensor], times: int, device: torch.device) -> bool:
        """Divide this rank's gradients by the scale, and say whether those of all ranks are finite.

        `times` is what they are multiplied by, too: better now than in float16, before the backward pass.
        """
        finite = torch.ones((), dtype=torch.uint8, device=device)
        for gradient in gradients:
            gradient.mul_(times / self.scale)
            finite *= gradient.isfinite().all()
        if dist.is_initialized():
            dist.all_reduce(finite, op=dist.ReduceOp.MIN)
        return self._update(bool(finite))

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps of it, for `load`."""
        return {"scale": self.scale, "updates_since_overflow": self.updates_since_overflow}

    def load(self, state: Mapping[str, float]) -> None:
        """Go on where another one was."""
        self.scale, self.updates_since_overflow = float(state["scale"]), int(state["updates_since_overflow"])

    def _update(self, finite: bool) -> bool:
        self.updates_since_overflow = self.updates_since_overflow + 1 if finite else 0
        if not finite:
            self.scale /= 2
        elif self.updates_since_overflow == GROWTH_INTERVAL:
            self.scale, self.updates_since_overflow = self.scale * 2, 0
        return finite


def in_float32(loss: Loss) -> Loss:
    """The same loss of outputs in half precision: a sum of many small losses needs the digits.

    A CPU without arithmetic in half precision computes all the same, if slowly: PyTorch's page about it is not shown.
    """
    warnings.filterwarnings("ignore", "mkldnn_.* failed, switching to BLAS", UserWarning)

    def of_wider(outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return loss(outputs.float(), batch)

    return of_wider
