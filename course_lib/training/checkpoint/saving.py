"""Save a checkpoint: every rank writes its part aside, and when all have, it gets its name.

With `BackgroundSaver` that happens while the training goes on, by `torch.distributed.checkpoint.async_save`.
What the ranks have is copied, which takes a moment, and a thread of each rank writes the copy to the disk, sums it and
gives the checkpoint its name. The next save waits for the last one; so does the end of the run. A rank needs memory
for the copy.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from course_lib.strategies import Strategy
from course_lib.strategies.base import rank_and_ranks
from course_lib.training.checkpoint.folder import CheckpointError, Position, complete, make_room, sums_of
from course_lib.training.checkpoint.lock import WriterLock, acquire_lock, on_rank_0
from course_lib.training.checkpoint.state import Pieces, SavePieces, layout_of, parameters_of, parts_of, state_dict_of

CHECKPOINTS_KEPT = 2


def save_checkpoint(
    strategy: Strategy,
    folder: str | Path,
    position: Position,
    *,
    notes: dict[str, Any] | None = None,
    keep: int = CHECKPOINTS_KEPT,
    lock: WriterLock | None = None,
) -> Path:
    """Write a checkpoint into `folder`, remove all but the last `keep`, and return where it is; for all ranks to call.

    Until the last byte is written it has another name, so a crash at any moment leaves the previous one to resume from.
    With a `lock`, which rank 0 has, nothing is written into a folder that another job has taken over.
    """
    save = begin_save(strategy, folder, position, notes=notes, keep=keep, lock=lock)
    with save.explained():
        dcp_save(state_dict_of(strategy), storage_writer=FileSystemWriter(save.aside), planner=SavePieces())
    return save.finish()


@dataclass(frozen=True)
class Save:
    """A checkpoint that is being written, and not yet by its name. `group` are the ranks' ways to each other."""

    final: Path
    aside: Path
    facts: dict[str, Any]
    keep: int
    lock: WriterLock | None
    group: dist.ProcessGroup | None = None

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """In the block, torch's error becomes a sentence, and what was written goes: it is room on the disk."""
        try:
            yield
        except CheckpointException as error:  # every rank gets it, whichever failed
            on_rank_0(lambda: shutil.rmtree(self.aside, ignore_errors=True), self.group)
            rank, (cause, _) = next(iter(error.failures.items()))
            raise CheckpointError(
                f"rank {rank} cannot write its part of {self.final} ({_reason(cause)}): see that the disk has room"
            ) from error

    def finish(self) -> Path:
        """Give the checkpoint its name, when all ranks have written their parts; for all of them to call."""
        sums = _sums_of_all_parts(self.aside, self.group)
        on_rank_0(lambda: self._complete(sums), self.group)
        return self.final

    def _complete(self, sums: dict[str, str]) -> None:
        if self.lock is not None:
            self.lock.check()
        complete(self.final, self.aside, self.facts, sums, self.keep)


def begin_save(
    strategy: Strategy,
    folder: str | Path,
    position: Position,
    *,
    notes: dict[str, Any] | None = None,
    keep: int = CHECKPOINTS_KEPT,
    lock: WriterLock | None = None,
    group: dist.ProcessGroup | None = None,
) -> Save:
    """Make room for a checkpoint; the ranks agree on what it is, and write their parts afterwards."""
    if keep < 1:
        raise ValueError(f"keep={keep}: at least the checkpoint that is saved is kept")
    final = Path(folder) / f"update-{position.updates:08d}"
    parts = parts_of(strategy, sampled=True)
    facts = {
        "position": asdict(position),
        "layout": layout_of(strategy, parts),
        "parameters": parameters_of(parts),
        "notes": notes or {},
        "optimizer": type(strategy.optimizer).__name__ if any(strategy.optimizer.state.values()) else "",
    }
    aside: Path = on_rank_0(lambda: _make_room(final, lock))
    return Save(final, aside, facts, keep, lock, group)


def _make_room(final: Path, lock: WriterLock | None) -> Path:
    if lock is not None:
        lock.check()
    return make_room(final)


def _reason(cause: BaseException) -> str:
    """Why something could not be written, in a few words."""
    while not isinstance(cause, OSError) and (cause.__cause__ or cause.__context__):
        cause = cause.__cause__ or cause.__context__ or cause
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return (str(cause).splitlines() or [type(cause).__name__])[0]


@contextlib.contextmanager
def writing_into(folder: str | Path) -> Iterator[WriterLock]:
    """In the block, no other job may write into `folder`; for all ranks to call."""
    is_rank_0 = rank_and_ranks()[0] == 0
    lock, from_whom = on_rank_0(lambda: acquire_lock(folder))
    if from_whom and is_rank_0:
        print(f"{folder} is taken over from {from_whom}, which no longer writes there", flush=True)
    try:
        yield lock
    finally:
        if is_rank_0:
            lock.release()


def _sums_of_all_parts(aside: Path, group: dist.ProcessGroup | None) -> dict[str, str]:
    """The sums of what all ranks have written, on every rank: each reads its own part."""
    rank, ranks = rank_and_ranks()
    ours: list[Any] = [None] * ranks
    mine = sums_of(sorted(aside.glob(f"__{rank}_*.distcp")))
    if dist.is_initialized():
        dist.all_gather_object(ours, mine, group=group)
    else:
        ours = [mine]
    return {name: digest for sums in ours for name, digest in sums.items()}


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
