"""A whole training run: the loop, its metrics and checkpoints, and the proof that it matches one process."""

from course_lib.settings import Settings
from course_lib.training.checkpoint import load_checkpoint, save_checkpoint
from course_lib.training.checkpoint.folder import (
    Checkpoint,
    CheckpointError,
    Position,
    latest_checkpoint,
    read_checkpoint,
)
from course_lib.training.job import train_job
from course_lib.training.loop import BatchReader, History, epochs, evaluate, train
from course_lib.training.measurement import make_sharded, measure_memory, measure_sharding, seconds_per_update
from course_lib.training.proof import Proof, same_as_one_process

__all__ = [
    "BatchReader", "Checkpoint", "CheckpointError", "History", "Position", "Proof", "Settings", "epochs", "evaluate",
    "latest_checkpoint", "load_checkpoint", "make_sharded", "measure_memory", "measure_sharding", "read_checkpoint",
    "same_as_one_process", "save_checkpoint", "seconds_per_update", "train", "train_job",
]  # fmt: skip
