"""Who does what, where and when: schedules, played through or planned, placements, and what a network costs."""

from course_lib.planning.line import Line, fit_line
from course_lib.planning.network import (
    AllReduceParts,
    Link,
    measure_all_reduce,
    measure_all_reduce_parts,
    measure_link,
)
from course_lib.planning.paced_network import paced_network
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
from course_lib.planning.planner import Network, Plan, Work, plans
from course_lib.planning.schedules import (
    SCHEDULES,
    Action,
    IllegalSchedule,
    Schedule,
    gpipe,
    naive,
    one_f_one_b,
    wavefront,
)
from course_lib.planning.sharding import ShardedMemory, block_bytes, predict_sharding
from course_lib.planning.simulation import ActionCosts, bubble, makespan, measured, simulate

__all__ = [
    "SCHEDULES",
    "Action",
    "ActionCosts",
    "AllReduceParts",
    "BlockCost",
    "CannotPlace",
    "IllegalSchedule",
    "Line",
    "Link",
    "Network",
    "Placement",
    "Plan",
    "Schedule",
    "ShardedMemory",
    "Work",
    "analytic_costs",
    "balanced",
    "block_bytes",
    "bubble",
    "equal_count",
    "fit_line",
    "forward_flops",
    "gpipe",
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
    "round_robin",
    "simulate",
    "step_cost",
    "wavefront",
]
