"""Half precision for the forward pass; weights, their gradients and the loss stay in float32."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.data import Batch
from course_lib.lstm.model import Loss

PRECISIONS: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

FIRST_SCALE, GROWTH_INTERVAL = 2.0**16, 2000  # the defaults of `torch.amp.GradScaler`


class GradientScaler:
    """Keeps small gradients from vanishing in float16: multiplies the loss by `scale`, and divides the gradients by it.

    If gradients overflow, the update is skipped and the scale is halved; after GROWTH_INTERVAL updates without an
    overflow it is doubled. `torch.amp.GradScaler` does the same, but looks at one rank's gradients only. If each rank
    has only a part of the model, all ranks must skip the same updates.
    """

    def __init__(self) -> None:
        self.scale, self.updates_since_overflow = FIRST_SCALE, 0

    def unscale(self, gradients: Sequence[Tensor], times: int, device: torch.device) -> bool:
        """Divide this rank's gradients by the scale, and return whether the gradients of all ranks are finite.

        They are also multiplied by `times`: now, because before the backward pass that would happen in float16.
        """
        finite = torch.ones((), dtype=torch.uint8, device=device)
        for gradient in gradients:
            gradient.mul_(times / self.scale)
            finite *= gradient.isfinite().all()
        if dist.is_initialized():
            dist.all_reduce(finite, op=dist.ReduceOp.MIN)
        return self._update(bool(finite))

    def state(self) -> dict[str, float]:
        """Return the state that a checkpoint saves, for `load`."""
        return {"scale": self.scale, "updates_since_overflow": self.updates_since_overflow}

    def load(self, state: Mapping[str, float]) -> None:
        """Continue from a saved state."""
        self.scale, self.updates_since_overflow = float(state["scale"]), int(state["updates_since_overflow"])

    def _update(self, finite: bool) -> bool:
        self.updates_since_overflow = self.updates_since_overflow + 1 if finite else 0
        if not finite:
            self.scale /= 2
        elif self.updates_since_overflow == GROWTH_INTERVAL:
            self.scale, self.updates_since_overflow = self.scale * 2, 0
        return finite


def in_float32(loss: Loss) -> Loss:
    """Return the loss, computed in float32 from outputs in half precision: a sum of many small losses needs the digits.

    A CPU without half-precision arithmetic still computes it, but slowly. We hide PyTorch's long warning about that.
    """
    warnings.filterwarnings("ignore", "mkldnn_.* failed, switching to BLAS", UserWarning)

    def of_wider(outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return loss(outputs.float(), batch)

    return of_wider
