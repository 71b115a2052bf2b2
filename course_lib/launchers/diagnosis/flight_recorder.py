"""PyTorch's flight recorder: the collectives this process has begun, in order.

Every rank must make the same calls in the same order. Where one does not, gloo hangs, aborts, or returns a
wrong number without a word. The recorder is always on and costs nothing, so the launcher reads every rank's
record and compares. (`TORCH_DISTRIBUTED_DEBUG=DETAIL` compares before each call, but triples the latency of a
collective, and torch 2.13 crashes when a model is then wrapped in DistributedDataParallel.)

The recorder's door is private and has moved between versions: torch 2.8 opened it, and 2.11 is the first whose gloo
writes anything down. Where it is shut, the record is empty, and `can_be_read` says so.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

FIRST_VERSION = (2, 11)
ADVICE = (
    "this PyTorch does not let its flight recorder be read: ranks that call different collectives are not found out, "
    "they hang until the time-out or get wrong numbers. Install torch 2.11 or newer"
)


def can_be_read() -> bool:
    """Whether this PyTorch lets us look. Without it, ranks that call different collectives are not found out."""
    import torch.distributed

    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return _door() is not None and version >= FIRST_VERSION


def entries() -> list[dict[str, Any]]:
    """The collectives this process has begun, oldest first, as PyTorch describes them (it keeps the last 2000).

    Under TORCH_DISTRIBUTED_DEBUG=DETAIL there are none: PyTorch then compares the calls itself, by messages of
    its own, which it records under the same (empty) name and with numbers that collide with the learner's.
    """
    dump = _door()
    if dump is None or _pytorch_compares():
        return []
    try:
        with_calls, with_stacks, only_active = True, False, False  # stacks would take two seconds to name
        found = pickle.loads(dump(with_calls, with_stacks, only_active)).get("entries", [])
    except Exception:
        return []
    return [entry for entry in found if not entry.get("is_p2p")]


def op_of(entry: dict[str, Any]) -> str:
    """`all_reduce` for `gloo:all_reduce`."""
    return str(entry.get("profiling_name", "")).rpartition(":")[2].split(" ")[0]


def _door() -> Callable[..., bytes] | None:
    torch = sys.modules.get("torch")
    return getattr(getattr(getattr(torch, "_C", None), "_distributed_c10d", None), "_dump_fr_trace", None)


def _pytorch_compares() -> bool:
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.get_debug_level() == dist.DebugLevel.DETAIL
