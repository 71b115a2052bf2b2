"""Checkpoints, keyed by the whole model's names: saved by one strategy on some ranks, loaded by any on any number.

    DIR/update-00000050                 complete: it got its name when every rank had written its part
    DIR/update-00000100.1b9d6bcd.tmp    being written, or left behind by a crash: never loaded, removed by the next save
    DIR/update-00000150.damaged         not as it was saved, and put aside when the run came there again

A strategy's `shards()` says which part of each parameter a rank has, and nothing else is asked of it. A rank writes
what it has; of what several ranks have, one writes it. Beside the tensors lies `training.json`: what model this is,
how far the training is, and how it was split.

`torch.distributed.checkpoint` keeps its table of contents as a pickle, which can run code when it is read: load
checkpoints that you, or someone you trust, have saved. The tensors themselves are read with `weights_only=True`.
"""

from course_lib.training.checkpoint.folder import Checkpoint, CheckpointError, Position, latest_checkpoint
from course_lib.training.checkpoint.loading import load_checkpoint
from course_lib.training.checkpoint.lock import on_rank_0
from course_lib.training.checkpoint.saving import BackgroundSaver, save_checkpoint, writing_into

__all__ = [
    "BackgroundSaver",
    "Checkpoint",
    "CheckpointError",
    "Position",
    "latest_checkpoint",
    "load_checkpoint",
    "on_rank_0",
    "save_checkpoint",
    "writing_into",
]
