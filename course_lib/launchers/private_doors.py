"""Every private door into PyTorch and CPython that the course goes through, and what happens where one is shut.

What starts with an underscore may be gone in the next version. So nothing private is used elsewhere: each door is a
function here that says what it needs, and does without, or says so, where that is missing. `doors` lists all of them;
tests/launchers/test_private_doors.py says which are shut in the installed versions.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import device, nn
    from torch.distributed.distributed_c10d import Store
    from torch.utils._python_dispatch import TorchDispatchMode

FLIGHT_RECORDERS = ("_dump_fr_trace", "_dump_nccl_trace")  # gloo's, and NCCL's
SENDS = {"send": "send", "recv": "recv", "recv_anysource": "recv"}
# What `dist.all_reduce` calls, and the name by which the flight recorder and people know it.
COLLECTIVES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "allgather_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_coalesced",
    "all_gather_single_coalesced": "all_gather_coalesced",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_coalesced",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "barrier": "barrier",
}

Note = Callable[[str, Any, Any, tuple, Mapping[str, Any]], None]  # op, group, work, arguments, keywords


def doors() -> dict[str, bool]:
    """Every private name that we use, and whether the installed versions have it. Imports torch."""
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
        "ProcessGroup": (dist.ProcessGroup, (*COLLECTIVES, *SENDS, "_get_backend", "_get_sequence_number_for_group")),
        "Work": (dist.Work, ("wait",)),
        "torch.cuda": (torch.cuda, ("_sleep",)),
        "torch.utils._python_dispatch": (_python_dispatch, ("TorchDispatchMode",)),
        "UntypedStorage": (torch.UntypedStorage(), ("_cdata",)),
        "Module": (torch.nn.Module(), ("_parameters", "_forward_hooks", "_forward_pre_hooks")),
        "atexit": (atexit, ("_clear", "_run_exitfuncs")),
        "threading": (threading, ("_shutdown",)),
        "sys": (sys, ("_current_frames",)),
        "multiprocessing.current_process()": (multiprocessing.current_process(), ("_config",)),
        "multiprocessing.forkserver": (forkserver, ("_forkserver", "ensure_running")),
    }
    return {f"{place}.{name}": hasattr(owner, name) for place, (owner, names) in places.items() for name in names}


def flight_recorders() -> list[Callable[..., bytes]]:
    """The functions that dump PyTorch's flight recorders: gloo's and NCCL's. Where one is shut, it is not in the list.

    Needs `torch._C._distributed_c10d._dump_fr_trace` and `_dump_nccl_trace`; imports nothing.
    """
    core = getattr(getattr(sys.modules.get("torch"), "_C", None), "_distributed_c10d", None)
    return [getattr(core, name) for name in FLIGHT_RECORDERS if hasattr(core, name)]


def has_gloo_recorder() -> bool:
    """Whether gloo's flight recorder can be dumped: needs `_dump_fr_trace`."""
    core = getattr(getattr(sys.modules.get("torch"), "_C", None), "_distributed_c10d", None)
    return hasattr(core, FLIGHT_RECORDERS[0])


def ranks_of_groups() -> dict[Any, tuple[int, ...]]:
    """The global ranks of each process group that exists. Shut, no group is known, and nobody is said to wait for it.

    Needs `torch.distributed.distributed_c10d._world.pg_group_ranks`.
    """
    groups = list(getattr(_world(), "pg_group_ranks", {}).items())  # of a group that it is not in, a rank has a number
    return {group: tuple(ranks) for group, ranks in groups if hasattr(group, "group_name")}


def ranks_of_group(group: Any) -> tuple[int, ...]:
    """The global ranks of one process group; none where the door of `ranks_of_groups` is shut."""
    return tuple(getattr(_world(), "pg_group_ranks", {}).get(group, ()))


def process_groups() -> list[Any]:
    """Every process group that exists: needs `_world.pg_map`. Shut, there are none, and none outlives its end."""
    return list(getattr(_world(), "pg_map", ()))


def _world() -> Any:
    return getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)


def backend_of(group: Any, place: device) -> Any:
    """What a process group talks over for tensors on this device: needs `ProcessGroup._get_backend`.

    Shut, it raises AttributeError: a call on a GPU is then not written down.
    """
    return group._get_backend(place)


def sequence_number(group_or_backend: Any) -> int:
    """How many collectives it has begun: needs `_get_sequence_number_for_group`.

    Shut, it raises AttributeError: a call is then not written down, and known only from the flight recorder.
    """
    return group_or_backend._get_sequence_number_for_group()


def default_store() -> Store:
    """The store through which the ranks have met: needs `_get_default_store`. Shut, it raises ImportError."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def replace_in_torch(name: str, function: Callable) -> None:
    """Put `function` in the place of `torch.distributed.NAME`, for PyTorch's own callers, too."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    setattr(dist, name, function)
    setattr(distributed_c10d, name, function)


def watch_process_groups(note_collective: Note, note_message: Note) -> None:
    """Call these after each call that goes through Python's process groups, for the rest of the process's life.

    Needs the methods of `ProcessGroup` behind `dist.all_reduce` and the others. One that this version does not have is
    not watched: its calls are known from the flight recorder alone.
    """
    import torch.distributed as dist

    for name, op in COLLECTIVES.items():
        _watch(dist.ProcessGroup, name, functools.partial(note_collective, op))
    for name, kind in SENDS.items():
        _watch(dist.ProcessGroup, name, functools.partial(note_message, kind))


def _watch(cls: Any, name: str, note: Callable[..., None]) -> None:
    method = getattr(cls, name, None)
    if method is None:
        return

    @functools.wraps(method)
    def noted(group: Any, *arguments: Any, **keywords: Any) -> Any:
        work = method(group, *arguments, **keywords)
        with contextlib.suppress(Exception):  # what is not understood is not written down, and does no harm
            note(group, work, arguments, keywords)
        return work

    setattr(cls, name, noted)


def watch_waits(begin: Callable[[Any], None], end: Callable[[bool], None]) -> None:
    """Call `begin(work)` before each `Work.wait` of this process, and `end` after it: with False, if it has raised.

    Needs a `wait` that can be replaced. Without it a rank cannot say which of several works it waits for.
    """
    import torch.distributed as dist

    work_class: Any = dist.Work
    wait = work_class.wait

    @functools.wraps(wait)
    def noted_wait(work: Any, *arguments: Any, **keywords: Any) -> Any:
        begin(work)
        came_to_its_end = False
        try:
            result = wait(work, *arguments, **keywords)
            came_to_its_end = True
            return result
        finally:
            end(came_to_its_end)

    work_class.wait = noted_wait


def sleep_on_gpu(cycles: int) -> None:
    """Keep the GPU busy for so many cycles: needs `torch.cuda._sleep`.

    Shut, it does not sleep: short kernels are then timed together with their start.
    """
    import torch

    getattr(torch.cuda, "_sleep", lambda _: None)(cycles)


def dispatch_mode() -> type[TorchDispatchMode]:
    """The class whose `__torch_dispatch__` sees every operation: needs `torch.utils._python_dispatch`, or ImportError.

    The one that is returned does not have PyTorch import its compiler, which takes seconds.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

    return Mode


def storage_id(storage: Any) -> int:
    """A number for a storage, as long as it lives: needs `UntypedStorage._cdata`. Shut, its address is taken.

    (Storages of no bytes all have the same address, and no size that would count.)
    """
    return getattr(storage, "_cdata", None) or storage.data_ptr()


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether somebody watches a module: needs `_forward_hooks` and `_forward_pre_hooks`. Shut, it says yes."""
    return bool(getattr(module, "_forward_hooks", True) or getattr(module, "_forward_pre_hooks", True))


def own_parameters(module: nn.Module) -> list[Any]:
    """A module's own parameters, ten times as fast as `parameters()`: needs `_parameters`. Shut, as slow as that."""
    own = getattr(module, "_parameters", None)
    return list(module.parameters(recurse=False)) if own is None else list(own.values())


def forget_exit_functions() -> None:
    """Forget what was registered with `atexit`: needs `atexit._clear`. Shut, a rank also calls its server's."""
    getattr(atexit, "_clear", lambda: None)()


def call_exit_functions() -> None:
    """Call what was registered with `atexit`: needs `atexit._run_exitfuncs`. Shut, a rank does not call it."""
    getattr(atexit, "_run_exitfuncs", lambda: None)()


def wait_for_threads() -> None:
    """Wait for this process's threads, as Python does when a program ends: needs `threading._shutdown`.

    Executors learn from it that they are done. Shut, threads that are no daemons are joined, one after the other.
    """
    if shutdown := getattr(threading, "_shutdown", None):
        return shutdown()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def frame_of(thread: int | None) -> FrameType | None:
    """Where a thread is: needs `sys._current_frames`. Shut, it is nowhere, and a rank that hangs cannot say where."""
    frames = getattr(sys, "_current_frames", dict)()
    return None if thread is None else frames.get(thread)


def process_configuration() -> dict[str, Any]:
    """Where `multiprocessing` notes its folder, for this process and those that it starts: needs `Process._config`.

    Shut, the folder is noted nowhere, and `multiprocessing` makes one of its own.
    """
    return getattr(multiprocessing.current_process(), "_config", {})


def fork_from_the_same_server() -> None:
    """Let a process that a fork server has made use that same server: needs `forkserver._forkserver`.

    Shut, it starts a server of its own, which takes seconds.
    """
    from multiprocessing import forkserver

    server = getattr(forkserver, "_forkserver", None)
    if server is not None:
        forkserver.ensure_running = server.ensure_running = lambda: None


def tensorflow_has_begun(context: Any) -> bool:
    """Whether TensorFlow's eager context is up: needs its `_initialized`. Shut, it says no: a port is closed twice."""
    return getattr(context, "_initialized", False)
