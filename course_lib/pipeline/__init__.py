"""A schedule is one list of actions that is drawn, simulated, executed and searched (lesson 06).

Read `actions`, `schedule`, `named_schedules`, `simulation`; then `stage`, `pipeline` and `message_order`, which run it.
"""

from typing import TYPE_CHECKING

from course_lib.runtime.exports import exports

if TYPE_CHECKING:
    from course_lib.model_parallel.placement import equal_count
    from course_lib.one_device.block_times import h200_block_times
    from course_lib.pipeline.actions import Action, Held, IllegalSchedule, Layout
    from course_lib.pipeline.bench_widget import schedule_bench
    from course_lib.pipeline.named_schedules import (
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
    from course_lib.pipeline.pipeline import Execution, Pipeline
    from course_lib.pipeline.schedule import Schedule
    from course_lib.pipeline.schedule_picture import draw_schedule, explore_schedules
    from course_lib.pipeline.search import find_schedule, lower_bound
    from course_lib.pipeline.simulation import ActionCosts, bubble, makespan, measured, simulate
    from course_lib.pipeline.stage import Stage

__getattr__, __dir__ = exports(__name__)
