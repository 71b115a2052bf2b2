"""A model cut over ranks: between its layers, or inside a cell (lesson 05).

Read `placement`, `model_parallel`, `tensor_parallel`. Their messages are in `point_to_point`.
"""

from typing import TYPE_CHECKING

from course_lib.runtime.exports import exports

if TYPE_CHECKING:
    from course_lib.model_parallel.cut_picture import draw_cut_edges
    from course_lib.model_parallel.model_parallel import ModelParallel
    from course_lib.model_parallel.placement import (
        BlockCost,
        CannotPlace,
        Placement,
        balanced,
        equal_count,
        round_robin,
        step_cost,
    )
    from course_lib.model_parallel.placement_widget import draw_placement, explore_placement
    from course_lib.model_parallel.sharded_memory import ShardedMemory, block_bytes, predict_sharding
    from course_lib.model_parallel.tensor_parallel import ShardedRecurrent, TensorParallel, Whole
    from course_lib.model_parallel.work import Work
    from course_lib.one_device.block_times import h200_block_times
    from course_lib.one_device.measurement import seconds_per_update
    from course_lib.one_device.memory_widget import draw_memory

__getattr__, __dir__ = exports(__name__)
