"""Who does what, where and when: schedules, played through or planned, placements, and what a network costs."""

from course_lib.planning.block_times import BlockSeconds, BlockTimes, h200_block_times, read_block_times
from course_lib.planning.calibration import Sizes, calibrate
from course_lib.planning.cluster import Network
from course_lib.planning.costs import ActionCosts
from course_lib.planning.explanation import Explanation, explain
from course_lib.planning.line import Line, fit_line
from course_lib.planning.network import (
    AllReduceParts,
    Link,
    measure_all_reduce,
    measure_all_reduce_parts,
    measure_link,
)
from course_lib.planning.paced_network import paced_network
from course_lib.planning.pieces import Pieces
from course_lib.planning.placement import (
    BlockCost,
    CannotPlace,
    Placement,
    analytic_costs,
    balanced,
    equal_count,
    forward_flops,
    measured_costs,
    round_robin,
    step_cost,
)
from course_lib.planning.plan import Plan
from course_lib.planning.planner import best_of_each_way, plans
from course_lib.planning.schedules import (
    SCHEDULES,
    Action,
    Held,
    IllegalSchedule,
    Layout,
    Schedule,
    from_torch,
    gpipe,
    interleaved_one_f_one_b,
    looped_bfs,
    make_schedule,
    naive,
    one_f_one_b,
    wavefront,
    with_recomputation,
    zero_bubble_h1,
    zero_bubble_v,
)
from course_lib.planning.search import find_schedule, lower_bound
from course_lib.planning.sharding import ShardedMemory, block_bytes, predict_sharding
from course_lib.planning.simulation import bubble, makespan, measured, simulate
from course_lib.planning.work import Work

__all__ = [
    "SCHEDULES",
    "Action",
    "ActionCosts",
    "AllReduceParts",
    "BlockCost",
    "BlockSeconds",
    "BlockTimes",
    "CannotPlace",
    "Explanation",
    "Held",
    "IllegalSchedule",
    "Layout",
    "Line",
    "Link",
    "Network",
    "Pieces",
    "Placement",
    "Plan",
    "Schedule",
    "ShardedMemory",
    "Sizes",
    "Work",
    "analytic_costs",
    "balanced",
    "best_of_each_way",
    "block_bytes",
    "bubble",
    "calibrate",
    "equal_count",
    "explain",
    "find_schedule",
    "fit_line",
    "forward_flops",
    "from_torch",
    "gpipe",
    "h200_block_times",
    "interleaved_one_f_one_b",
    "looped_bfs",
    "lower_bound",
    "make_schedule",
    "makespan",
    "measure_all_reduce",
    "measure_all_reduce_parts",
    "measure_link",
    "measured",
    "measured_costs",
    "naive",
    "one_f_one_b",
    "paced_network",
    "plans",
    "predict_sharding",
    "read_block_times",
    "round_robin",
    "simulate",
    "step_cost",
    "wavefront",
    "with_recomputation",
    "zero_bubble_h1",
    "zero_bubble_v",
]
