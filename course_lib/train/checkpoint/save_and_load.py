"""Save a checkpoint, and load it into any strategy, on any number of ranks.

Every rank writes its part into a temporary folder, which is renamed when all are done. `BackgroundSaver` does the same
while training continues: it copies the state, which takes a moment and memory, and a thread on each rank writes the
copy. The next save waits for the last one, and so does the end of the run.
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from course_lib.core.shards import NamedTensors
from course_lib.core.strategy import Strategy, on_rank_0, rank_and_ranks
from course_lib.train.checkpoint import state
from course_lib.train.checkpoint.files import (
    Checkpoint,
    CheckpointError,
    Position,
    complete,
    find_checkpoint,
    locked,
    make_room,
    sums_of,
)

CHECKPOINTS_KEPT = 2


@contextlib.contextmanager
def writing_into(folder: str | Path) -> Iterator[None]:
    """Inside this context, no other job may write into `folder`. All ranks must call this."""
    with contextlib.ExitStack() as stack:
        on_rank_0(lambda: stack.enter_context(locked(Path(folder))))
        yield


def save_checkpoint(
    strategy: Strategy,
    folder: str | Path,
    position: Position,
    *,
    notes: dict[str, Any] | None = None,
    keep: int = CHECKPOINTS_KEPT,
) -> Path:
    """Write a checkpoint into `folder`, remove all but the last `keep`, and return its path. All ranks must call this.

    The checkpoint has a temporary name until its last byte is written, so after a crash at any moment you can resume
    from the previous one.
    """
    return _begin(strategy, folder, position, notes, keep)(state.tensors_of(strategy))


def _begin(
    strategy: Strategy,
    folder: str | Path,
    position: Position,
    notes: dict[str, Any] | None,
    keep: int = CHECKPOINTS_KEPT,
    group: dist.ProcessGroup | None = None,
) -> Callable[[NamedTensors], Path]:
    """Return a function that writes this rank's tensors, and renames the checkpoint when all ranks have.

    The ranks communicate through `group` there. The parts are checked and the temporary folder is created before.
    """
    from torch.distributed.checkpoint.api import CheckpointException  # the imports take a second
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    if keep < 1:
        raise ValueError(f"keep={keep}: keep at least the checkpoint being saved")
    final = Path(folder) / f"update-{position.updates:08d}"
    facts = {"position": asdict(position), "notes": notes or {}, **state.description_of(strategy, sampled=True)}
    if not any(strategy.optimizer.state.values()):
        facts["optimizer"] = ""  # any other may continue
    temporary = on_rank_0(lambda: make_room(final))

    def write(tensors: NamedTensors) -> Path:
        try:
            save(tensors, storage_writer=FileSystemWriter(temporary), process_group=group)
        except CheckpointException as error:  # raised on every rank, no matter which one failed
            on_rank_0(lambda: shutil.rmtree(temporary, ignore_errors=True), group)
            rank, reason = _first_failure(error)
            raise CheckpointError(
                f"rank {rank} cannot write its part of {final} ({reason}): check that the disk has room"
            ) from error
        rank, ranks = rank_and_ranks()
        local_sums = sums_of(sorted(temporary.glob(f"__{rank}_*.distcp")))
        sums = [local_sums] * ranks
        if dist.is_initialized():
            dist.all_gather_object(sums, local_sums, group=group)
        of_all_ranks = {name: digest for of_rank in sums for name, digest in of_rank.items()}
        on_rank_0(lambda: complete(final, temporary, facts, of_all_ranks, keep), group)
        return final

    return write


def _first_failure(error: Any) -> tuple[int, str]:
    """Return the first rank that failed to write or read, and why: torch wraps the error of the disk in its own."""
    rank, (cause, _) = next(iter(error.failures.items()))
    while not isinstance(cause, OSError) and (cause.__cause__ or cause.__context__):
        cause = cause.__cause__ or cause.__context__
    strerror = cause.strerror if isinstance(cause, OSError) else None
    return rank, strerror or (str(cause).splitlines() or [type(cause).__name__])[0]


class BackgroundSaver:
    """Saves checkpoints like `save_checkpoint`, in the background. Every rank has a saver and makes the same calls.

    At the end of a `with` block the last checkpoint is complete, even after an exception of a type in `agreed`, which
    all ranks raise together. After any other exception, we cannot know which ranks to wait for.
    """

    def __init__(self, agreed: tuple[type[Exception], ...] = ()) -> None:
        self._agreed = agreed
        # The threads communicate at the same time as the ranks, so they need a separate group, on the CPU.
        self._group: Any = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None

    def save(
        self, strategy: Strategy, folder: str | Path, position: Position, *, notes: dict[str, Any] | None = None
    ) -> None:
        """Start writing a checkpoint once the last one is complete. Raises the last one's error, if it failed."""
        self.wait()
        write = _begin(strategy, folder, position, notes, group=self._group)
        copies = {name: state.copied(tensor) for name, tensor in state.tensors_of(strategy).items()}
        self._pending = self._thread.submit(write, copies)

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
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    checkpoint, damaged = on_rank_0(lambda: find_checkpoint(folder))
    if checkpoint is None:
        raise CheckpointError(f"there is no checkpoint in {folder}: give the folder that it was saved into")
    if damaged:
        _warn(f"{', '.join(damaged)}: {checkpoint.path.name}, the previous one, is loaded instead")
    # Refuse what we must before the strategy or its optimizer changes.
    current = state.description_of(strategy, sampled=False)
    checkpoint = replace(checkpoint, same_layout=checkpoint.layout == current["layout"])
    state.check_same(checkpoint, current["parameters"], current["optimizer"])
    reader = FileSystemReader(checkpoint.path)
    saved = reader.read_metadata().state_dict_metadata
    targets, slots = state.targets_of(strategy, checkpoint, saved)
    try:
        load(targets, storage_reader=reader)
    except CheckpointException as error:
        rank, reason = _first_failure(error)
        raise CheckpointError(
            f"{checkpoint.path} cannot be read (rank {rank}: {reason}): remove it to resume from the previous"
        ) from error
    for parameter, its_slots in slots.items():
        strategy.optimizer.state.pop(parameter, None)  # what had no gradient before the save has no state
        if its_slots:
            strategy.optimizer.state[parameter] = its_slots
    state.restore_rank(strategy, targets)
    strategy.updates = checkpoint.position.updates
    if strategy.carry_state and not checkpoint.same_layout:
        _warn(
            f"{checkpoint.path.name} was saved by {state.in_words(checkpoint.layout)}, and is loaded by "
            f"{state.in_words(current['layout'])}: the carried state starts at zero"
        )
    return checkpoint


def _warn(message: str) -> None:
    if rank_and_ranks()[0] == 0:
        warnings.warn(message, stacklevel=3)
