"""Ways to train a model: one file per strategy, all with the same interface."""

from course_lib.strategies.base import Single, Strategy, broadcast_weights, sum_over_ranks
from course_lib.strategies.ddp import DDP, Accumulation, TracedDDP
from course_lib.strategies.fsdp import FSDP, GatherPace, GatherWatch
from course_lib.strategies.hybrid import Hybrid
from course_lib.strategies.model_parallel import ModelParallel
from course_lib.strategies.pipeline import Pipeline
from course_lib.strategies.shards import BadShards, Shard
from course_lib.strategies.tensor_parallel import TensorParallel
from course_lib.strategies.transformer import ShardedGPTBlock

__all__ = [
    "DDP", "FSDP", "Accumulation", "BadShards", "GatherPace", "GatherWatch", "Hybrid", "ModelParallel", "Pipeline",
    "Shard", "ShardedGPTBlock", "Single", "Strategy", "TensorParallel", "TracedDDP",
    "broadcast_weights", "sum_over_ranks",
]  # fmt: skip
