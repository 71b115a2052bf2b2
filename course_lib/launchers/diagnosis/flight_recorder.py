"""PyTorch's flight recorder: the collectives this process has begun, in order.

Every rank must make the same calls in the same order. Where one does not, gloo hangs, aborts, or returns a
wrong number without a word. The recorder is always on and costs nothing, so the launcher reads every rank's
record and compares. (`TORCH_DISTRIBUTED_DEBUG=DETAIL` compares before each call, but triples the latency of a
collective, and torch 2.13 crashes when a model is then wrapped in DistributedDataParallel.)

The recorder's door is private and has moved between versions: where it is shut, the record is empty.
"""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MUST_AGREE_ON_SHAPE = {"all_reduce", "broadcast", "reduce"}  # others may have uneven parts
DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "Int": "int32", "Long": "int64"}


@dataclass(frozen=True)
class Call:
    """The `number`-th collective of a process group, as one rank called it."""

    group: str
    number: int
    op: str
    dtype: str
    shape: tuple[int, ...] | None
    finished: bool = field(default=False, compare=False)

    @property
    def terms(self) -> tuple:
        """What the ranks of the group must agree on."""
        return (self.op, self.dtype, self.shape) if self.op in MUST_AGREE_ON_SHAPE else (self.op,)

    def __str__(self) -> str:
        return f"{self.op} of {self.dtype} {list(self.shape)}" if self.shape is not None else self.op


def calls() -> list[Call]:
    """The collectives this process has begun, oldest first (the recorder keeps the last 2000).

    Under TORCH_DISTRIBUTED_DEBUG=DETAIL there are none: PyTorch then compares the calls itself, by messages of
    its own, which it records under the same (empty) name and with numbers that collide with the learner's.
    """
    if _pytorch_compares():
        return []
    return [_call(entry) for entry in _entries() if not entry.get("is_p2p")]


def pending() -> str | None:
    """The op of the newest collective that this process has begun and not finished."""
    return next((_op(entry) for entry in reversed(_entries()) if not entry.get("retired", True)), None)


def first_difference(calls_of: Mapping[int, Iterable[Call]]) -> dict[int, Call] | None:
    """The first collective on which ranks disagree, as each of them called it; None if they agree."""
    meetings: dict[tuple[str, int], dict[int, Call]] = {}
    for rank, made in calls_of.items():
        for call in made:
            meetings.setdefault((call.group, call.number), {})[rank] = call
    for _, meeting in sorted(meetings.items(), key=lambda item: item[0][1]):
        if len({call.terms for call in meeting.values()}) > 1:
            return meeting
    return None


def odd_caller(meeting: Mapping[int, Call]) -> int | None:
    """The rank whose call differs from the majority's; None if there is no majority."""
    counts = Counter(call.terms for call in meeting.values())
    (usual, most), *others = counts.most_common()
    if any(count == most for _, count in others):
        return None
    return min(rank for rank, call in meeting.items() if call.terms != usual)


def _call(entry: dict[str, Any]) -> Call:
    group = ":".join(entry.get("process_group", ()))
    dtype = (entry.get("input_dtypes") or [""])[0]
    shape = (entry.get("input_sizes") or [None])[0]
    number = entry.get("collective_seq_id", 0)
    shape = shape if shape is None else tuple(shape)
    finished = bool(entry.get("retired", False))
    return Call(group, number, _op(entry), DTYPES.get(dtype, dtype.lower()), shape, finished)


def _op(entry: dict[str, Any]) -> str:
    """`all_reduce` for `gloo:all_reduce`."""
    return str(entry.get("profiling_name", "")).rpartition(":")[2].split(" ")[0]


def _pytorch_compares() -> bool:
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.get_debug_level() == dist.DebugLevel.DETAIL


def _entries() -> list[dict[str, Any]]:
    torch = sys.modules.get("torch")
    dump = getattr(getattr(getattr(torch, "_C", None), "_distributed_c10d", None), "_dump_fr_trace", None)
    if dump is None:
        return []
    try:
        with_calls, with_stacks, only_active = True, False, False  # stacks would take two seconds to name
        return pickle.loads(dump(with_calls, with_stacks, only_active)).get("entries", [])
    except Exception:
        return []
