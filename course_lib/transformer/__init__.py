"""A small GPT, for every strategy that trains the LSTM (lesson 12)."""

from typing import TYPE_CHECKING

from course_lib.runtime.exports import exports

if TYPE_CHECKING:
    from course_lib.data_parallel.ddp import DDP
    from course_lib.model_parallel.tensor_parallel import TensorParallel, UsedInParts
    from course_lib.pipeline.named_schedules import one_f_one_b, zero_bubble_h1
    from course_lib.pipeline.pipeline import Pipeline
    from course_lib.pipeline.simulation import ActionCosts, simulate
    from course_lib.sharding.fsdp import FSDP
    from course_lib.transformer.gpt import MLP, Attention, GPTBlock, ShardedGPTBlock, Summed, attend, gpt_model

__getattr__, __dir__ = exports(__name__)
