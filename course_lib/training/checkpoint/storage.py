"""Save a checkpoint, and load it into any strategy, on any number of ranks.

Every rank writes its part into a temporary folder, which is renamed when all are done.

With `BackgroundSaver`, `torch.distributed.checkpoint.async_save` does this while training continues. It first copies
the state, which takes a moment and memory; then a thread on each rank writes the copy to disk and hashes it, and rank 0
renames the folder. The next save waits for the last one, and so does the end of the run.
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from course_lib.strategies import Strategy
from course_lib.strategies.base import rank_and_ranks
from course_lib.strategies.shards import NamedTensors
from course_lib.training.checkpoint import state
from course_lib.training.checkpoint.folder import (
    Checkpoint,
    CheckpointError,
    Position,
    complete,
    find_checkpoint,
    make_room,
    sums_of,
)
from course_lib.training.checkpoint.lock import WriterLock, acquire_lock, on_rank_0

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
    """Write a checkpoint into `folder`, remove all but the last `keep`, and return its path. All ranks must call this.

    The checkpoint has a temporary name until its last byte is written, so after a crash at any moment you can resume
    from the previous one. With a `lock`, which rank 0 holds, this refuses to write if a different job has taken over.
    """
    from course_lib.training.checkpoint import planners

    save = begin_save(strategy, folder, position, notes=notes, keep=keep, lock=lock)
    with save.explained():
        writer = planners.FileSystemWriter(save.temporary)
        planners.save(state.state_dict_of(strategy), storage_writer=writer, planner=planners.SavePieces())
    return save.finish()


@dataclass(frozen=True)
class Save:
    """A checkpoint being written, still under its temporary name. The ranks communicate through `group`."""

    final: Path
    temporary: Path
    facts: dict[str, Any]
    keep: int
    lock: WriterLock | None
    group: dist.ProcessGroup | None = None

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """If a write fails in this context, turn torch's error into a sentence, and delete the partial checkpoint."""
        from course_lib.training.checkpoint.planners import CheckpointException

        try:
            yield
        except CheckpointException as error:  # raised on every rank, no matter which one failed
            on_rank_0(lambda: shutil.rmtree(self.temporary, ignore_errors=True), self.group)
            rank, (cause, _) = next(iter(error.failures.items()))
            raise CheckpointError(
                f"rank {rank} cannot write its part of {self.final} ({_reason(cause)}): check that the disk has room"
            ) from error

    def finish(self) -> Path:
        """Rename the checkpoint to its final name when all ranks have written their parts. All ranks must call this."""
        sums = _sums_of_all_parts(self.temporary, self.group)
        on_rank_0(lambda: self._complete(sums), self.group)
        return self.final

    def _complete(self, sums: dict[str, str]) -> None:
        if self.lock is not None:
            self.lock.check()
        complete(self.final, self.temporary, self.facts, sums, self.keep)


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
    """Create the temporary folder and the checkpoint's description. The ranks then write their parts."""
    if keep < 1:
        raise ValueError(f"keep={keep}: keep at least the checkpoint being saved")
    final = Path(folder) / f"update-{position.updates:08d}"
    parts = state.parts_of(strategy, sampled=True)
    facts = {
        "position": asdict(position),
        "layout": state.layout_of(strategy, parts),
        "parameters": state.parameters_of(parts),
        "notes": notes or {},
        "optimizer": type(strategy.optimizer).__name__ if any(strategy.optimizer.state.values()) else "",
    }
    temporary: Path = on_rank_0(lambda: _make_room(final, lock))
    return Save(final, temporary, facts, keep, lock, group)


def _make_room(final: Path, lock: WriterLock | None) -> Path:
    if lock is not None:
        lock.check()
    return make_room(final)


def _reason(cause: BaseException) -> str:
    """Return the reason for a failed write, in a few words."""
    while not isinstance(cause, OSError) and (cause.__cause__ or cause.__context__):
        cause = cause.__cause__ or cause.__context__ or cause
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return (str(cause).splitlines() or [type(cause).__name__])[0]


@contextlib.contextmanager
def writing_into(folder: str | Path) -> Iterator[WriterLock]:
    """Inside this context, no other job may write into `folder`. All ranks must call this."""
    is_rank_0 = rank_and_ranks()[0] == 0
    lock, from_whom = on_rank_0(lambda: acquire_lock(folder))
    if from_whom and is_rank_0:
        print(f"{folder} is taken over from {from_whom}, which no longer writes there", flush=True)
    try:
        yield lock
    finally:
        if is_rank_0:
            lock.release()


def _sums_of_all_parts(temporary: Path, group: dist.ProcessGroup | None) -> dict[str, str]:
    """Return the hashes of all ranks' files on every rank; each rank hashes the files it wrote."""
    rank, ranks = rank_and_ranks()
    gathered: list[Any] = [None] * ranks
    local_sums = sums_of(sorted(temporary.glob(f"__{rank}_*.distcp")))
    if dist.is_initialized():
        dist.all_gather_object(gathered, local_sums, group=group)
    else:
        gathered = [local_sums]
    return {name: digest for sums in gathered for name, digest in sums.items()}


class BackgroundSaver:
    """Saves checkpoints like `save_checkpoint`, in the background. Every rank has a saver and makes the same calls.

    At the end of a `with` block the last checkpoint is complete, even after an exception of a type in `agreed`, which
    all ranks raise together. After any other exception, we cannot know which ranks to wait for.
    """

    def __init__(self, agreed: tuple[type[Exception], ...] = ()) -> None:
        self._agreed = agreed
        # The threads communicate at the same time as the ranks, so they need a separate group, on the CPU.
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
        """Start writing a checkpoint once the last one is complete. Raises the last one's error, if it failed."""
        from course_lib.training.checkpoint import planners

        self.wait()
        save = begin_save(strategy, folder, position, notes=notes, lock=lock, group=self._group)
        writing = planners.async_save(
            state.state_dict_of(strategy),
            storage_writer=planners.PiecesWriter(save.temporary),
            planner=planners.SavePieces(),
            process_group=self._group,
        )
        self._pending = self._thread.submit(_finish, save, writing)

    def is_writing(self) -> bool:
        """Return whether this rank is still writing or renaming the last checkpoint."""
        return self._pending is not None and not self._pending.done()

    def wait(self) -> None:
        """Wait until the last checkpoint is complete. Raises its error on every rank, if it failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> BackgroundSaver:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        ranks_agree = kind is None or issubclass(kind, self._agreed)
        try:
            if ranks_agree:
                self.wait()
        finally:
            self._thread.shutdown(wait=ranks_agree)


def _finish(save: Save, writing: Any) -> Path:
    with save.explained():
        writing.result()
    return save.finish()


def load_checkpoint(strategy: Strategy, folder: str | Path) -> Checkpoint:
    """Load the latest checkpoint in `folder` into `strategy`, and return the checkpoint's description.

    With the same layout, training then continues as if it had never stopped, bit for bit (on a GPU, if its kernels are
    deterministic). With torch's DDP on three or more ranks, run one step *before* the load: DDP reorders its messages
    after the first step, which changes the order in which it adds three or more numbers.

    If the latest checkpoint is damaged, you get a warning, and the previous one is loaded.

    With a different layout, every rank keeps its current random numbers, and a carried state starts at zero. If the
    ranks had different versions of a buffer, like BatchNorm's, the first rank's is loaded. The learning rate is the new
    optimizer's.
    """
    from course_lib.training.checkpoint import planners

    checkpoint, damaged = on_rank_0(lambda: find_checkpoint(folder))
    if checkpoint is None:
        raise CheckpointError(f"there is no checkpoint in {folder}: give the folder that it was saved into")
    path = checkpoint.path
    if damaged and rank_and_ranks()[0] == 0:
        warnings.warn(f"{', '.join(damaged)}: {path.name}, the previous one, is loaded instead", stacklevel=2)
    parts = state.parts_of(strategy)
    state.check_same_model(checkpoint, state.parameters_of(parts))
    state.check_same_optimizer(checkpoint, strategy)
    same_layout = checkpoint.layout == state.layout_of(strategy, parts)
    try:
        saved = planners.FileSystemReader(path).read_metadata().state_dict_metadata
    except Exception as error:  # a truncated pickle may raise anything
        raise CheckpointError(f"{path} is damaged ({error}): remove it to resume from the previous one") from error
    state.check_same_slots(checkpoint, saved, strategy)
    shards = strategy.shards()
    pieces = {
        state.copy_name(shard, same_layout) + f"model.{name}": state.Pieces.from_shard(shard)
        for name, shard in shards.items()
    }
    slots: dict[str, NamedTensors] = {name: {} for name in shards}
    for name, shard in shards.items():
        prefix = state.copy_name(shard, same_layout) + f"optimizer.{name}."
        for key, entry in saved.items():
            slot = key.removeprefix(prefix)
            if key.startswith(prefix) and "." not in slot:
                slots[name][slot] = state.empty_slot(shard, name, slot, entry)
                pieces[key] = state.Pieces.from_shard(shard, slots[name][slot])
    buffers = state.find_buffers(checkpoint, saved, strategy, same_layout)
    rank_keys = state.rank_keys(saved) if same_layout else []
    tensors = {key: state.empty(saved[key]) for key in [*rank_keys, *buffers.values()]}
    pieces |= {key: state.Pieces.whole(tensor) for key, tensor in tensors.items()}
    try:
        planners.load(pieces, storage_reader=planners.FileSystemReader(path), planner=planners.LoadPieces())
    except planners.CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise CheckpointError(
            f"{path} is damaged (rank {rank}: {str(cause).splitlines()[0]}): remove it to resume from the previous one"
        ) from error
    state.restore_optimizer(strategy, {shards[name].tensor: of_name for name, of_name in slots.items() if of_name})
    state.restore_rank(strategy, tensors)
    state.restore_buffers(strategy, {name: tensors[key] for name, key in buffers.items()})
    strategy.updates = checkpoint.position.updates
    if strategy.carry_state and not same_layout and rank_and_ranks()[0] == 0:
        layout = state.layout_of(strategy, parts)
        warnings.warn(
            f"{checkpoint.path.name} was saved by {state.in_words(checkpoint.layout)}, and is loaded by "
            f"{state.in_words(layout)}: the carried state starts at zero",
            stacklevel=2,
        )
    return checkpoint
