"""Programs that bring up their own process group: the one they ask for is already there.

Under `mp.spawn` or torchrun, a function begins with `init_process_group` and ends with `destroy_process_group`. On
our ranks the group is up before the function begins. Its first `init_process_group` is therefore answered by that
group; after `destroy_process_group`, another call makes a new one, over the store through which the ranks have met.
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

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


def accept_second_init(store: Store, *, timeout: float | None, on_new_group: Callable[[], None] = lambda: None) -> None:
    """Answer `init_process_group` from now on. `store` is where the ranks have met; `timeout` is their group's."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    make_group = dist.init_process_group
    answered, made = False, 1

    @functools.wraps(make_group)
    def init_process_group(*arguments: Any, **keywords: Any) -> None:
        nonlocal answered, made
        asked = inspect.signature(make_group).bind(*arguments, **keywords)
        _check(asked.arguments)
        if dist.is_initialized():
            if answered:
                return make_group(*arguments, **keywords)  # PyTorch says that this is once too often
            answered = True
            return _compare_backends(asked.arguments.get("backend"), dist.get_backend_config())
        answered, made = True, made + 1
        if asked.arguments.get("store") is None and asked.arguments.get("init_method") in (None, "env://"):
            asked.arguments["store"] = distributed_c10d.PrefixStore(f"group {made}", store)
            asked.arguments["init_method"] = None
            asked.arguments["rank"] = int(os.environ["RANK"])
            asked.arguments["world_size"] = int(os.environ["WORLD_SIZE"])
            if asked.arguments.get("backend") is None and asked.arguments.get("device_id") is None:
                asked.arguments["backend"] = machine.backend(int(os.environ["LOCAL_WORLD_SIZE"]))
            if timeout is not None:
                asked.arguments.setdefault("timeout", timedelta(seconds=timeout))
        make_group(*asked.args, **asked.kwargs)
        on_new_group()

    dist.init_process_group = distributed_c10d.init_process_group = init_process_group
    _keep_destroyed_groups()


def _keep_destroyed_groups() -> None:
    """Let no group die before its process.

    A gloo group that is destroyed while a model in DistributedDataParallel still has it dies with the model: the
    thread that frees it holds Python's lock and waits for the group's own threads, and these wait for the lock to let
    go of their last work. Of 22 launches of a function that ends with `destroy_process_group()`, 17 hung (torch 2.13).
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    destroy = dist.destroy_process_group
    kept: list[Any] = []

    @functools.wraps(destroy)
    def destroy_process_group(*arguments: Any, **keywords: Any) -> None:
        kept.extend(distributed_c10d._world.pg_map)
        destroy(*arguments, **keywords)

    dist.destroy_process_group = distributed_c10d.destroy_process_group = destroy_process_group


def _check(asked: dict[str, Any]) -> None:
    """Refuse a rank or a number of ranks that is not this launch's."""
    for name, variable in (("world_size", "WORLD_SIZE"), ("rank", "RANK")):
        value, ours = asked.get(name, -1), int(os.environ[variable])
        if value not in (-1, ours):
            what = f"this launch has {ours} ranks" if name == "world_size" else f"this is rank {ours}"
            raise ValueError(
                f"init_process_group({name}={value}): {what}. Leave rank and world_size out, or take them from "
                "dist.get_rank() and dist.get_world_size(): the process group is already up"
            )


def _compare_backends(asked: Any, have: str) -> None:
    """Say so if the program asked for another backend than the group has."""
    backends = {part.rpartition(":")[2] for part in have.lower().split(",")}
    wanted = {part.rpartition(":")[2] for part in str(asked or "").lower().split(",")} - {"", "undefined"}
    if wanted - backends:
        used = " and ".join(sorted(backends))
        warnings.warn(
            f"init_process_group({str(asked)!r}): the group that is already up is used, which talks over {used}",
            stacklevel=3,
        )
