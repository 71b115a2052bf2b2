"""Pipeline schedules as data: one list of actions per stage, which can be checked, drawn, simulated and executed."""

from course_lib.planning.schedules.actions import KINDS, Action, IllegalSchedule, Step
from course_lib.planning.schedules.deadlock import Waiting
from course_lib.planning.schedules.held import Held, fullest, held_after_each, peak_held
from course_lib.planning.schedules.layout import LAYOUTS, Layout
from course_lib.planning.schedules.needs import giver_of, own_needs
from course_lib.planning.schedules.one_part import gpipe, naive, one_f_one_b, wavefront
from course_lib.planning.schedules.registry import SCHEDULES, make_schedule, with_recomputation
from course_lib.planning.schedules.schedule import (
    Schedule,
    as_far_as_it_goes,
    check,
    checked_order,
    dependencies,
    in_running_order,
    who_waits,
)
from course_lib.planning.schedules.torch_schedules import from_torch
from course_lib.planning.schedules.virtual_stages import interleaved_one_f_one_b, looped_bfs
from course_lib.planning.schedules.zero_bubble import zero_bubble_h1, zero_bubble_v

__all__ = [
    "KINDS",
    "LAYOUTS",
    "SCHEDULES",
    "Action",
    "Held",
    "IllegalSchedule",
    "Layout",
    "Schedule",
    "Step",
    "Waiting",
    "as_far_as_it_goes",
    "check",
    "checked_order",
    "dependencies",
    "from_torch",
    "fullest",
    "giver_of",
    "gpipe",
    "held_after_each",
    "in_running_order",
    "interleaved_one_f_one_b",
    "looped_bfs",
    "make_schedule",
    "naive",
    "one_f_one_b",
    "own_needs",
    "peak_held",
    "wavefront",
    "who_waits",
    "with_recomputation",
    "zero_bubble_h1",
    "zero_bubble_v",
]
