"""Every private API of PyTorch and CPython that the course uses, and what happens if one is missing.

A name that starts with an underscore may be gone in the next version, so no other module uses one. `doors` lists all
names, and each function's docstring says what happens if its own is missing; tests/runtime/test_private_doors.py
shows which are missing in the installed versions.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import device, nn
    from torch.distributed.distributed_c10d import Store
    from torch.utils._python_dispatch import TorchDispatchMode

FLIGHT_RECORDERS = ("_dump_fr_trace", "_dump_nccl_trace")  # gloo's, and NCCL's
SENDS = {"send": "send", "recv": "recv", "recv_anysource": "recv"}
GROUP_METHODS = ("_get_backend", "_get_sequence_number_for_group", "_end_coalescing")
# The methods of `ProcessGroup` that `dist.all_reduce` and the other collectives call. A version of PyTorch has
# some of them. If it lacks them all, we know the calls only from the flight recorder.
METHODS = {
    "all_reduce": "allreduce",
    "all_reduce_coalesced": "allreduce_coalesced",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "allgather _allgather_base all_gather_single",
    "all_gather_coalesced": "allgather_coalesced allgather_into_tensor_coalesced all_gather_single_coalesced",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter _reduce_scatter_base reduce_scatter_single",
    "reduce_scatter_coalesced": "reduce_scatter_tensor_coalesced reduce_scatter_single_coalesced",
    "all_to_all": "alltoall alltoall_base all_to_all_single",
    "barrier": "barrier",
}
COLLECTIVES = {method: op for op, methods in METHODS.items() for method in methods.split()}


def doors() -> dict[str, bool]:
    """Return every private name that we use, and whether the installed versions have it. Imports torch."""
    from multiprocessing import forkserver

    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d
    from torch.utils import _python_dispatch

    world = getattr(distributed_c10d, "_world", None)
    places: dict[str, tuple[Any, Sequence[str]]] = {
        "torch._C._distributed_c10d": (getattr(torch._C, "_distributed_c10d", None), FLIGHT_RECORDERS),
        "torch.distributed.distributed_c10d": (distributed_c10d, ("_world", "_get_default_store")),
        "torch.distributed.distributed_c10d._world": (world, ("pg_group_ranks", "pg_map")),
        "ProcessGroup": (dist.ProcessGroup, (*COLLECTIVES, *SENDS, *GROUP_METHODS)),
        "Work": (dist.Work, ("wait",)),
        "torch.cuda": (torch.cuda, ("_sleep",)),
        "torch.utils._python_dispatch": (_python_dispatch, ("TorchDispatchMode",)),
        "UntypedStorage": (torch.UntypedStorage(), ("_cdata",)),
        "Tensor": (torch.Tensor, ("_version",)),
        "Module": (torch.nn.Module(), ("_parameters", "_forward_hooks", "_forward_pre_hooks")),
        "atexit": (atexit, ("_clear", "_run_exitfuncs")),
        "threading": (threading, ("_shutdown",)),
        "sys": (sys, ("_current_frames",)),
        "multiprocessing.forkserver": (forkserver, ("_forkserver", "ensure_running")),
    }
    return {f"{place}.{name}": hasattr(owner, name) for place, (owner, names) in places.items() for name in names}


def flight_recorders() -> list[Callable[..., bytes]]:
    """Return the functions that dump PyTorch's flight recorders, without those that are missing. Imports nothing."""
    core = getattr(getattr(sys.modules.get("torch"), "_C", None), "_distributed_c10d", None)
    return [getattr(core, name) for name in FLIGHT_RECORDERS if hasattr(core, name)]


def _world() -> Any:
    return getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)


def ranks_of_groups() -> dict[Any, tuple[int, ...]]:
    """Return each process group's global ranks; if missing, none, and we never report that a rank waits for one."""
    groups = list(getattr(_world(), "pg_group_ranks", {}).items())  # a group this rank is not in appears as a number
    return {group: tuple(ranks) for group, ranks in groups if hasattr(group, "group_name")}


def ranks_of_group(group: Any) -> tuple[int, ...]:
    """Return the global ranks of one process group; if missing, ()."""
    return tuple(getattr(_world(), "pg_group_ranks", {}).get(group, ()))


def process_groups() -> list[Any]:
    """Return every existing process group; if missing, none, and no destroyed group is kept alive."""
    return list(getattr(_world(), "pg_map", ()))


def backend_of(group: Any, place: device) -> Any:
    """Return a group's backend for tensors on this device; if missing, it raises, and calls on a GPU are not logged."""
    return group._get_backend(place)


def goes_over_nccl(group: Any, arguments: tuple) -> bool:
    """Return whether a call goes over NCCL: its first tensor is on a GPU, and the group uses NCCL for those."""
    first: Any = arguments
    while type(first) in (list, tuple) and first:
        first = first[0]
    on_gpu = getattr(first, "is_cuda", False)
    return on_gpu and "nccl" in type(backend_of(group, first.device)).__name__.lower()


def was_in_batch(error: BaseException) -> bool:
    """Return whether an error ended a batch of messages, which `dist.batch_isend_irecv` sends over NCCL."""
    return any(frame.f_code.co_name == "_coalescing_manager" for frame, _ in traceback.walk_tb(error.__traceback__))


def leave_nccl_group() -> None:
    """Balance PyTorch's count of open NCCL groups in this thread after a batch of messages was aborted.

    For NCCL the batch has ended, but PyTorch would end it again before it creates its next communicator. Call this when
    the new process group is up. If missing, the next call on a GPU raises.
    """
    import torch
    import torch.distributed as dist

    group: Any = dist.group.WORLD
    ctypes.CDLL("libnccl.so.2").ncclGroupStart()
    group._end_coalescing(torch.device("cuda"))


def sequence_number(group_or_backend: Any) -> int:
    """Return how many collectives a group or backend has started. If missing, it raises, and calls are not logged."""
    return group_or_backend._get_sequence_number_for_group()


def default_store() -> Store:
    """Return the store used for the rendezvous; if missing, it raises ImportError."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def replace_in_torch(name: str, function: Callable) -> None:
    """Replace `torch.distributed.NAME` with `function`, also for callers inside PyTorch."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    setattr(dist, name, function)
    setattr(distributed_c10d, name, function)


def dispatch_mode() -> type[TorchDispatchMode]:
    """Return the class whose `__torch_dispatch__` sees every operation; if missing, it raises ImportError.

    The class keeps PyTorch from importing its compiler, which takes seconds.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

    return Mode


def storage_id(storage: Any) -> int:
    """Return an id for a storage, valid while it lives; if missing, its address."""
    return getattr(storage, "_cdata", None) or storage.data_ptr()


def writes_so_far(tensor: Any) -> int:
    """Return how often a tensor, or a view of its storage, was changed in place; 0 if missing, or in inference mode."""
    return 0 if tensor.is_inference() else getattr(tensor, "_version", 0)


def has_forward_hooks(module: nn.Module) -> bool:
    """Return whether a module has hooks; True if missing."""
    return bool(getattr(module, "_forward_hooks", True) or getattr(module, "_forward_pre_hooks", True))


def own_parameters(module: nn.Module) -> list[Any]:
    """Return a module's direct parameters. If missing, `parameters()` takes ten times as long."""
    parameters = getattr(module, "_parameters", None)
    return list(module.parameters(recurse=False)) if parameters is None else list(parameters.values())


# Without these, a rank also calls the fork server's `atexit` functions, does not call its own when its function ends,
# and ends without waiting for the threads and executors that its function started.
forget_exit_functions: Callable[[], None] = getattr(atexit, "_clear", lambda: None)
call_exit_functions: Callable[[], None] = getattr(atexit, "_run_exitfuncs", lambda: None)
wait_for_threads: Callable[[], None] = getattr(threading, "_shutdown", lambda: None)


def frame_of(thread: int | None) -> FrameType | None:
    """Return a thread's current frame; if missing, None, and we don't know where a rank hangs."""
    frames = getattr(sys, "_current_frames", dict)()
    return None if thread is None else frames.get(thread)


def fork_from_the_same_server() -> None:
    """Let a process that was forked from a fork server use it, too; if missing, it takes seconds to start a second."""
    from multiprocessing import forkserver

    server = getattr(forkserver, "_forkserver", None)
    if server is not None:
        forkserver.ensure_running = server.ensure_running = lambda: None


def single_tensor_collectives() -> tuple[str, str]:
    """Return PyTorch's names for the all-gather and the reduce-scatter of one tensor: 2.13 renamed them."""
    import torch.distributed as dist

    if hasattr(dist, "all_gather_single"):
        return "all_gather_single", "reduce_scatter_single"
    return "all_gather_into_tensor", "reduce_scatter_tensor"
