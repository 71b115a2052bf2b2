"""Plan a training run before it runs: pipeline schedules, placements, memory, and the cost of communication."""

from course_lib.planning.actions import Action, Held, IllegalSchedule, Layout
from course_lib.planning.block_times import BlockSeconds, BlockTimes, Work, h200_block_times, read_block_times
from course_lib.planning.network import Line, Link, Network, fit_line, measure_link, paced_network
from course_lib.planning.placement import (
    BlockCost,
    CannotPlace,
    Placement,
    balanced,
    equal_count,
    round_robin,
    step_cost,
)
from course_lib.planning.plan import Pieces, Plan, sent_by
from course_lib.planning.planner import Explanation, best_of_each_way, explain, plans
from course_lib.planning.schedule import Schedule
from course_lib.planning.schedules import (
    SCHEDULES,
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
from course_lib.planning.sensitivity import Sensitivity, sensitivity
from course_lib.planning.sharding import ShardedMemory, block_bytes, predict_sharding
from course_lib.planning.simulation import ActionCosts, bubble, makespan, measured, simulate

__all__ = [
    "SCHEDULES", "Action", "ActionCosts", "BlockCost", "BlockSeconds", "BlockTimes", "CannotPlace", "Explanation",
    "Held", "IllegalSchedule", "Layout", "Line", "Link", "Network", "Pieces", "Placement", "Plan", "Schedule",
    "Sensitivity", "ShardedMemory", "Work", "balanced", "best_of_each_way", "block_bytes", "bubble",
    "equal_count", "explain", "find_schedule", "fit_line", "from_torch", "gpipe", "h200_block_times",
    "interleaved_one_f_one_b", "looped_bfs", "lower_bound", "make_schedule", "makespan", "measure_link", "measured",
    "naive", "one_f_one_b", "paced_network", "plans", "predict_sharding", "read_block_times",
    "round_robin", "sensitivity", "sent_by", "simulate", "step_cost", "wavefront", "with_recomputation",
    "zero_bubble_h1", "zero_bubble_v",
]  # fmt: skip
