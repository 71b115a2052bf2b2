"""Checkpoints that are written while the training goes on: `torch.distributed.checkpoint.async_save`.

What the ranks have is copied, which takes a moment, and a thread of each rank writes the copy to the disk, sums it and
gives the checkpoint its name. The next save waits for the last one; so does the end of the run. A rank needs memory
for the copy.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import async_save

from course_lib.strategies import Strategy
from course_lib.training.checkpoint.folder import Position
from course_lib.training.checkpoint.lock import WriterLock
from course_lib.training.checkpoint.pieces import Pieces, SavePieces
from course_lib.training.checkpoint.saving import Save, begin_save
from course_lib.training.checkpoint.state import state_dict_of


class PiecesWriter(FileSystemWriter):
    """Copies `Pieces` before the training goes on; torch's own would not know how."""

    def stage(self, state_dict: dict[str, Pieces]) -> dict[str, Pieces]:
        return {name: pieces.copied() for name, pieces in state_dict.items()}


class BackgroundSaver:
    """Saves checkpoints as `save_checkpoint` does, in the background; every rank has one, and makes the same calls.

    At the end of a `with` block the last one is whole; also after an error that is one of `agreed`, which all ranks
    raise alike. After another one, nobody knows which ranks there are to wait for.
    """

    def __init__(self, agreed: tuple[type[Exception], ...] = ()) -> None:
        self._agreed = agreed
        # The ranks' threads talk to each other while the ranks do: they need ways of their own, between processors.
        group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        assert not isinstance(group, int)  # this rank is in the group
        self._group = group
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None

    def save(
        self,
        strategy: Strategy,
        folder: str | Path,
        position: Position,
        *,
        notes: dict[str, Any] | None = None,
        lock: WriterLock | None = None,
    ) -> None:
        """Begin to write a checkpoint, when the last one is written. Raises what went wrong with that one."""
        self.wait()
        save = begin_save(strategy, folder, position, notes=notes, lock=lock, group=self._group)
        writing = async_save(
            state_dict_of(strategy),
            storage_writer=PiecesWriter(save.aside),
            planner=SavePieces(),
            process_group=self._group,
        )
        self._pending = self._thread.submit(_finish, save, writing)

    def is_writing(self) -> bool:
        """Whether this rank's part of the last checkpoint, or its name, is still to come."""
        return self._pending is not None and not self._pending.done()

    def wait(self) -> None:
        """Return when the last checkpoint is whole. Raises what went wrong with it, on every rank."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> BackgroundSaver:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        ends_together = kind is None or issubclass(kind, self._agreed)
        try:
            if ends_together:
                self.wait()
        finally:
            self._thread.shutdown(wait=ends_together)


def _finish(save: Save, writing: Any) -> Path:
    with save.explained():
        writing.result()
    return save.finish()
