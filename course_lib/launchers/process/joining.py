"""How a rank joins the others: the variables that torchrun would set, and the process group.

Under `mp.spawn` or torchrun, a function starts with `init_process_group` and ends with `destroy_process_group`. On our
ranks, the group is up before the function starts, so its first `init_process_group` returns without creating one.
After `destroy_process_group`, the next call creates a new group, over the store that the ranks used for the rendezvous.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from course_lib import machine
from course_lib.launchers import private_doors
from course_lib.launchers.process.messages import LaunchSpec

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


INSIDE_A_RANK = "COURSE_LIB_INSIDE_A_RANK"
A_DAY = 86_400.0  # in effect no limit: the notebook's timeout is the one that counts


def rank_environment(rank: int, spec: LaunchSpec) -> dict[str, str]:
    """Return the environment variables that torchrun would set for this rank."""
    variables = {
        "RANK": rank,
        "LOCAL_RANK": spec.here.index(rank),
        "WORLD_SIZE": spec.ranks,
        "LOCAL_WORLD_SIZE": len(spec.here),
        "OMP_NUM_THREADS": machine.threads_per_rank(len(spec.here)),
        "GROUP_RANK": spec.here.start // len(spec.here),
        "GROUP_WORLD_SIZE": spec.ranks // len(spec.here),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": spec.ranks,
        "ROLE_NAME": "default",
        INSIDE_A_RANK: rank,
    }
    if spec.rendezvous is None:
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["MASTER_PORT"], machine.LAUNCHED_HERE: rank}
        interface = machine.loopback_interface()
        variables |= {"GLOO_SOCKET_IFNAME": interface, "TP_SOCKET_IFNAME": interface} if interface else {}
    else:
        variables |= {
            "MASTER_ADDR": spec.rendezvous.address,
            "MASTER_PORT": spec.rendezvous.port,
            "TORCHELASTIC_RUN_ID": spec.rendezvous.job,
            "TORCHELASTIC_RESTART_COUNT": spec.rendezvous.restarts,
        }
    if machine.gpus():
        # To explain a hang: the flight recorder keeps the last collectives, with the time at which the GPU reached
        # each. A rank whose GPU has not started one is the rank that the others wait for.
        recorded = {"TORCH_FR_BUFFER_SIZE": 2000, "TORCH_NCCL_ENABLE_TIMING": 1}
        variables |= {name: value for name, value in recorded.items() if name not in os.environ}
        per_gpu = -(-len(spec.here) // machine.gpus())
        if per_gpu > 1 and "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
            variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = max(1, 100 // per_gpu)  # a share of the GPU for each
    return {name: str(value) for name, value in variables.items()}


def join_process_group(
    rank: int, ranks: int, *, store_file: str | None = None, peer_timeout: float | None = None
) -> Store:
    """Create the process group on this rank's device, with a private file or torchrun's rendezvous.

    A rank that waits longer than `peer_timeout` seconds for a peer raises; None means PyTorch's default.
    Returns the store that the ranks used for the rendezvous.
    """
    import torch
    import torch.distributed as dist

    # torch has no other name for these two, and does not mark them as exported.
    from torch.distributed import FileStore, set_debug_level_from_env  # pyright: ignore[reportPrivateImportUsage]
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    local_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    torch.set_num_threads(machine.threads_per_rank(local_ranks))
    if index := machine.gpu_index():  # GPU 0 is already the current one, and setting it would start the driver
        torch.cuda.set_device(index)
    set_debug_level_from_env()  # torch read it at import, before this launch's environment was set
    if store_file:
        store: Store = FileStore(store_file, ranks)
    else:
        # After a restart, torchrun's store still has the addresses of dead ranks in it. Without a prefix for each
        # attempt, a rank that reads a stale address would wait for it forever.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"attempt {attempt}", next(rendezvous("env://"))[0])
    timeout = None if peer_timeout is None else timedelta(seconds=peer_timeout)
    dist.init_process_group(machine.backend(local_ranks), store=store, rank=rank, world_size=ranks, timeout=timeout)
    return store


def accept_second_init(
    store: Store,
    *,
    timeout: float | None,
    on_new_group: Callable[[], None] = lambda: None,
    every_time: bool = False,
) -> list[Any]:
    """Replace `init_process_group`. `store` is the one from the rendezvous; `timeout` is the existing group's.

    With `every_time`, all calls are accepted while the group is up, not only the first, because a cell may run twice.
    Returns a list that keeps destroyed groups alive.
    """
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    make_group = dist.init_process_group
    answered, group_count = False, 1

    @functools.wraps(make_group)
    def init_process_group(*arguments: Any, **keywords: Any) -> None:
        nonlocal answered, group_count
        call = inspect.signature(make_group).bind(*arguments, **keywords)
        _check_rank_and_size(call.arguments)
        if dist.is_initialized():
            if answered and not every_time:
                return make_group(*arguments, **keywords)  # PyTorch raises: this is one call too many
            answered = True
            return _compare_backends(call.arguments.get("backend"), dist.get_backend_config())
        answered, group_count = True, group_count + 1
        if call.arguments.get("store") is None and call.arguments.get("init_method") in (None, "env://"):
            call.arguments["store"] = PrefixStore(f"group {group_count}", store)
            call.arguments["init_method"] = None
            call.arguments["rank"] = int(os.environ["RANK"])
            call.arguments["world_size"] = int(os.environ["WORLD_SIZE"])
            if call.arguments.get("backend") is None and call.arguments.get("device_id") is None:
                call.arguments["backend"] = machine.backend(int(os.environ["LOCAL_WORLD_SIZE"]))
            if timeout is not None:
                call.arguments.setdefault("timeout", timedelta(seconds=timeout))
        make_group(*call.args, **call.kwargs)
        on_new_group()

    private_doors.replace_in_torch("init_process_group", init_process_group)
    return _keep_destroyed_groups()


def _keep_destroyed_groups() -> list[Any]:
    """Keep every group alive until its process ends. Returns the list that holds the destroyed ones.

    If a gloo group is destroyed while a DistributedDataParallel model still refers to it, it is freed with the model.
    The thread that frees it holds the GIL and waits for the group's threads, which need the GIL to release their last
    work. 17 of 22 launches of a function that ends with `destroy_process_group()` hung (torch 2.13).
    """
    import torch.distributed as dist

    destroy = dist.destroy_process_group
    destroyed_groups: list[Any] = []

    @functools.wraps(destroy)
    def destroy_process_group(*arguments: Any, **keywords: Any) -> None:
        destroyed_groups.extend(private_doors.process_groups())
        destroy(*arguments, **keywords)

    private_doors.replace_in_torch("destroy_process_group", destroy_process_group)
    return destroyed_groups


def _check_rank_and_size(arguments: dict[str, Any]) -> None:
    """Raise if the requested rank or world size is not this launch's."""
    for name, variable in (("world_size", "WORLD_SIZE"), ("rank", "RANK")):
        value, expected = arguments.get(name, -1), int(os.environ[variable])
        if value not in (-1, expected):
            fact = f"this launch has {expected} ranks" if name == "world_size" else f"this is rank {expected}"
            raise ValueError(
                f"init_process_group({name}={value}): {fact}. Leave rank and world_size out, or take them from "
                "dist.get_rank() and dist.get_world_size(): the process group is already up"
            )


def _compare_backends(requested: Any, existing: str) -> None:
    """Warn if the program asked for a different backend than the group has."""
    backends = {part.rpartition(":")[2] for part in existing.lower().split(",")}
    wanted = {part.rpartition(":")[2] for part in str(requested or "").lower().split(",")} - {"", "undefined"}
    if wanted - backends:
        used = " and ".join(sorted(backends))
        warnings.warn(
            f"init_process_group({str(requested)!r}): the group that is already up is used; its backend is {used}",
            stacklevel=3,
        )
