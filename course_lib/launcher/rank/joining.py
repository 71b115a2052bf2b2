"""How a rank joins the others: the variables that torchrun would set, and the process group.

Under `mp.spawn` or torchrun, a function starts with `init_process_group` and ends with `destroy_process_group`. On our
ranks, the group is up before the function starts, so its first `init_process_group` returns without creating one.
After `destroy_process_group`, the next call creates a new group, over the store that the ranks used for the rendezvous.
"""

from __future__ import annotations

import functools
import inspect
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from course_lib.launcher.hangs.errors import CONSEQUENCE, PeersLost
from course_lib.launcher.hangs.stacks import locate, stack_of_exception
from course_lib.launcher.wire.messages import LaunchSpec
from course_lib.runtime import machine, private_doors

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
        if loopback := {"linux": "lo", "darwin": "lo0"}.get(sys.platform):
            variables |= {"GLOO_SOCKET_IFNAME": loopback, "TP_SOCKET_IFNAME": loopback}
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

    Returns a list that keeps destroyed groups alive until this process ends. If a gloo group is destroyed while a
    DistributedDataParallel model still refers to it, it is freed with the model. The thread that frees it holds the GIL
    and waits for the group's threads, which need the GIL to release their last work. 17 of 22 launches of a function
    that ends with `destroy_process_group()` hung (torch 2.13).
    """
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    make_group, destroy = dist.init_process_group, dist.destroy_process_group
    answered, group_count = False, 1
    destroyed_groups: list[Any] = []

    @functools.wraps(make_group)
    def init_process_group(*arguments: Any, **keywords: Any) -> None:
        nonlocal answered, group_count
        call = inspect.signature(make_group).bind(*arguments, **keywords)
        for name, variable in (("world_size", "WORLD_SIZE"), ("rank", "RANK")):
            value, expected = call.arguments.get(name, -1), int(os.environ[variable])
            if value not in (-1, expected):
                fact = f"this launch has {expected} ranks" if name == "world_size" else f"this is rank {expected}"
                raise ValueError(
                    f"init_process_group({name}={value}): {fact}. Leave rank and world_size out, or take them from "
                    "dist.get_rank() and dist.get_world_size(): the process group is already up"
                )
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

    @functools.wraps(destroy)
    def destroy_process_group(*arguments: Any, **keywords: Any) -> None:
        destroyed_groups.extend(private_doors.process_groups())
        destroy(*arguments, **keywords)

    private_doors.replace_in_torch("init_process_group", init_process_group)
    private_doors.replace_in_torch("destroy_process_group", destroy_process_group)
    return destroyed_groups


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


SIGN_WITHIN = 3.0  # seconds; ranks that wait in the same collective give up at about the same time
LOOK_EVERY = 0.2


class PeerRoster:
    """All ranks of a job and their hosts. Every rank creates one right after the rendezvous.

    gloo reports "Timed out waiting 5000ms for recv operation to complete", but not for which rank. Ranks on several
    machines share a store, hosted on rank 0's machine. Each rank that gives up signs a roster there; the ranks that
    don't sign are lost. A rank that cannot even reach the store has lost the machine that hosts it.
    """

    def __init__(self, store: Store, rank: int, ranks: int) -> None:
        self.store, self.rank, self.ranks = store, rank, ranks
        store.set(f"host of {rank}", socket.gethostname())
        self.hosts = [store.get(f"host of {peer}").decode() for peer in range(ranks)]

    def explain(self, error: BaseException) -> PeersLost | None:
        """Return a `PeersLost` that names the lost ranks, or None if lost ranks are not why `error` was raised."""
        lost = self._lost_ranks() if CONSEQUENCE.search(str(error)) else ()
        if not lost:
            return None  # or every rank gave up, so they were waiting for each other
        place = locate(stack_of_exception(error.__traceback__)).frame
        hosts = " and ".join(dict.fromkeys(self.hosts[rank] for rank in lost))
        return PeersLost(rank=self.rank, lost=lost, hosts=hosts, place=str(place or ""), cause=error)

    def _lost_ranks(self) -> tuple[int, ...]:
        """Return the ranks that did not sign; if the store is unreachable, the ranks on rank 0's host."""
        everybody, signed, reached = range(self.ranks), set[int](), threading.Event()

        def sign_and_read() -> None:
            deadline = time.monotonic() + SIGN_WITHIN
            self.store.set(f"{self.rank} gave up", "")
            while len(signed) < self.ranks and time.monotonic() < deadline:
                signed.update(peer for peer in everybody if self.store.check([f"{peer} gave up"]))
                reached.set()
                time.sleep(LOOK_EVERY)

        reader = threading.Thread(target=sign_and_read, daemon=True)
        reader.start()
        reader.join(2 * SIGN_WITHIN)  # if the network is down, a call to the store blocks for minutes
        if not reached.is_set():
            return tuple(peer for peer in everybody if self.hosts[peer] == self.hosts[0])
        return tuple(peer for peer in everybody if peer not in signed)
