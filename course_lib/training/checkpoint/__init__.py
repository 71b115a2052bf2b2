"""Checkpoints, keyed by the whole model's names: saved by one strategy, loaded by any, on any number of ranks.

    DIR/update-00000050                 complete: renamed to this after every rank had written its part
    DIR/update-00000100.1b9d6bcd.tmp    being written, or left by a crash: never loaded, removed by the next save
    DIR/update-00000150.damaged         files don't match what was saved; renamed when the run got there again

All that we ask of a strategy is `shards()`, which says what part of each parameter a rank has. A rank writes its part;
if several ranks have the same part, one of them writes it. `training.json`, next to the tensors, says which model this
is, how far the training is, and how it was split.

`torch.distributed.checkpoint` stores its table of contents as a pickle, which can run code when it is read: only load
checkpoints that you, or someone you trust, have saved. The tensors themselves are read with `weights_only=True`.
"""

from course_lib.training.checkpoint.folder import Checkpoint, CheckpointError, Position, latest_checkpoint
from course_lib.training.checkpoint.lock import on_rank_0
from course_lib.training.checkpoint.storage import BackgroundSaver, load_checkpoint, save_checkpoint, writing_into

__all__ = [
    "BackgroundSaver", "Checkpoint", "CheckpointError", "Position", "latest_checkpoint", "load_checkpoint",
    "on_rank_0", "save_checkpoint", "writing_into",
]  # fmt: skip
