"""Ways to train a model: one file per strategy, all with the same interface."""

from course_lib.strategies.base import Single, Strategy, broadcast_weights, sum_over_ranks
from course_lib.strategies.ddp import DDP, Accumulation, TracedDDP
from course_lib.strategies.fsdp import FSDP, GatherPace, GatherWatch
from course_lib.strategies.hybrid import Hybrid
from course_lib.strategies.model_parallel import ModelParallel
from course_lib.strategies.pipeline import Pipeline
from course_lib.strategies.registry import STRATEGIES, find_strategy, make_strategy
from course_lib.strategies.shards import BadShards, Shard
from course_lib.strategies.tensor_parallel import TensorParallel

__all__ = [
    "DDP", "FSDP", "STRATEGIES", "Accumulation", "BadShards", "GatherPace", "GatherWatch", "Hybrid", "ModelParallel",
    "Pipeline", "Shard", "Single", "Strategy", "TensorParallel", "TracedDDP",
    "broadcast_weights", "find_strategy", "make_strategy", "sum_over_ranks",
]  # fmt: skip
