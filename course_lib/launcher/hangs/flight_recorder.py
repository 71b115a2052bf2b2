"""Read PyTorch's flight recorder: the collectives this process has started, in order.

Every rank must make the same calls in the same order. If one does not, gloo hangs, aborts, or silently returns a wrong
number. The recorder is always on and costs nothing, so the launcher reads every rank's record and compares them.
(`TORCH_DISTRIBUTED_DEBUG=DETAIL` compares before each call, but triples the latency of a collective, and torch 2.13
crashes if a model is then wrapped in DistributedDataParallel.)

NCCL has a separate recorder, which also tracks the GPU: a collective is `scheduled` until the GPU reaches it, then
`started`, then `completed`. (Without TORCH_NCCL_ENABLE_TIMING=1, it does not distinguish the first two.)

The functions that read the recorders are private; torch 2.11 is the first version in which gloo records anything.
`course doctor` says if this PyTorch is older, or if gloo's cannot be read.
"""

from __future__ import annotations

import pickle
import re
import sys
from typing import Any

from course_lib.runtime import private_doors

FIRST_VERSION = (2, 11)
COALESCED = "coalesced"  # a batch of messages
ADVICE = (
    "the flight recorder of this PyTorch cannot be read: ranks that call different collectives go unnoticed; "
    "they hang until the timeout or get wrong numbers. Install torch 2.11 or newer"
)


def can_be_read() -> bool:
    """Return whether gloo's recorder can be read. If not, ranks that call different collectives go unnoticed."""
    return any(dump.__name__ == private_doors.FLIGHT_RECORDERS[0] for dump in private_doors.flight_recorders())


def entries() -> list[dict[str, Any]]:
    """Return the collectives this process has started, oldest first, as PyTorch records them (it keeps the last 2000).

    Under TORCH_DISTRIBUTED_DEBUG=DETAIL the list is empty. PyTorch then compares the calls itself, using extra
    messages, which it records under the same (empty) name and with numbers that collide with the learner's.
    """
    return [entry for entry in _all_entries() if not (entry.get("is_p2p") or op_of(entry) == COALESCED)]


def on_gpu() -> list[dict[str, Any]]:
    """Return the NCCL operations that are not finished, oldest first: collectives and point-to-point messages.

    NCCL records a batch as its messages, whose state it does not track, and then as a whole. Here, each message gets
    the state of its batch.
    """
    unfinished, batch = [], []
    for entry in _all_entries():
        if not is_nccl(entry):
            continue
        if entry.get("is_p2p"):
            batch.append(entry)
        elif op_of(entry) == COALESCED:
            unfinished += [{**message, "state": entry["state"]} for message in batch if entry["state"] != "completed"]
            batch = []
        elif entry["state"] != "completed":
            unfinished.append(entry)
    return unfinished


def is_nccl(entry: dict[str, Any]) -> bool:
    """Return whether a collective went over NCCL."""
    return str(entry.get("profiling_name", "")).startswith("nccl:")


def peer_of(entry: dict[str, Any]) -> int | None:
    """Return a message's peer as a rank in its group: 1 for `nccl:recv 0<-1`. None for a collective."""
    match = re.search(r"(?:->|<-)(\d+)$", str(entry.get("profiling_name", "")))
    return int(match[1]) if match else None


def _all_entries() -> list[dict[str, Any]]:
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.get_debug_level() == dist.DebugLevel.DETAIL:
        return []  # PyTorch compares the calls itself, see `entries`
    entries: list[dict[str, Any]] = []
    with_calls, with_stacks, only_active = True, False, False  # symbolizing stacks would take two seconds
    for dump in private_doors.flight_recorders():
        try:
            entries += pickle.loads(dump(with_calls, with_stacks, only_active)).get("entries", [])
        except Exception:  # a recorder that cannot be read must not hide what the others know, or break the rank
            continue
    return sorted(entries, key=lambda entry: entry.get("time_created_ns", 0))


def op_of(entry: dict[str, Any]) -> str:
    """Return the name of the operation: `all_reduce` for `gloo:all_reduce`."""
    return str(entry.get("profiling_name", "")).rpartition(":")[2].split(" ")[0]
