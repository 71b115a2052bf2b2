"""Replicas of pipelines, shards of parameters, and a plan for both (lesson 07).

Read `mesh`, `hybrid`, `fsdp`; then `plan` and `choose_plan`.
"""

from typing import TYPE_CHECKING

from course_lib.runtime.exports import exports

if TYPE_CHECKING:
    from course_lib.data_parallel.network import paced_network
    from course_lib.messages.link import Link
    from course_lib.model_parallel.placement import Placement, equal_count
    from course_lib.model_parallel.point_to_point import gradient_of, receive, send
    from course_lib.model_parallel.sharded_memory import block_bytes, predict_sharding
    from course_lib.model_parallel.work import Work
    from course_lib.one_device.block_times import h200_block_times
    from course_lib.one_device.memory_widget import draw_memory
    from course_lib.pipeline.named_schedules import one_f_one_b
    from course_lib.sharding.choose_plan import Explanation, best_of_each_way, explain, plans
    from course_lib.sharding.fsdp import FSDP, GatherPace, GatherWatch
    from course_lib.sharding.gather_picture import draw_gather_and_drop
    from course_lib.sharding.hybrid import Hybrid
    from course_lib.sharding.measurement import make_sharded, measure_sharding, plan_seconds
    from course_lib.sharding.meshes_widget import explore_meshes
    from course_lib.sharding.network import Network
    from course_lib.sharding.plan import Pieces, Plan
    from course_lib.sharding.plans_picture import draw_plans
    from course_lib.sharding.what_if import Sensitivity, sensitivity

__getattr__, __dir__ = exports(__name__)
