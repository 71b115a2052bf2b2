"""Checkpoints, keyed by the whole model's names: saved by one strategy, loaded by any, on any number of ranks.

    DIR/update-00000050                 complete: renamed to this when every rank had written its part
    DIR/update-00000100.1b9d6bcd.tmp    being written, or left by a crash: never loaded, removed by the next save
    DIR/update-00000150.damaged         files have changed since the save; renamed when a run reached this update again
    DIR/writer.lock                     the job that writes here

A strategy needs only `shards()`, which returns the part of each parameter that a rank has. A rank writes its part; if
several ranks have the same part, one of them writes it. `training.json`, next to the tensors, describes the model, how
far the training got, and how it was split.

`torch.distributed.checkpoint` stores its table of contents as a pickle, which can run code when it is read: load only
checkpoints that you or someone you trust saved. The tensors themselves are read with `weights_only=True`.
"""

from course_lib.train.checkpoint.files import Checkpoint, CheckpointError, Position, latest_checkpoint
from course_lib.train.checkpoint.save_and_load import BackgroundSaver, load_checkpoint, save_checkpoint, writing_into

__all__ = [
    "BackgroundSaver", "Checkpoint", "CheckpointError", "Position", "latest_checkpoint", "load_checkpoint",
    "save_checkpoint", "writing_into",
]  # fmt: skip
