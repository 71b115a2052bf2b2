"""One rank acts on the folder of checkpoints, and all ranks hear what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from course_lib.strategies.base import rank_and_ranks
from course_lib.training.checkpoint.folder import CheckpointError


def on_rank_0(act: Callable[[], Any], group: dist.ProcessGroup | None = None) -> Any:
    """What `act` returns on rank 0, on every rank. If it raises there, every rank raises.

    Ranks on several machines may see a shared folder in different states: one of them looks, for all.
    """
    answer: list[Any] = [None]
    if rank_and_ranks()[0] == 0:
        try:
            answer = [act()]
        except OSError as error:
            answer = [CheckpointError(f"the checkpoint cannot be written ({error}): see that the disk has room")]
        except CheckpointError as error:
            answer = [error]
    if dist.is_initialized():
        dist.broadcast_object_list(answer, group=group)
    if isinstance(answer[0], CheckpointError):
        raise answer[0]
    return answer[0]
