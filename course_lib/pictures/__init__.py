"""Pictures made from what a run returned. Each has a description in words, for those who cannot see it."""

from course_lib.pictures.comparison import comparison
from course_lib.pictures.curves import curves, panels
from course_lib.pictures.cut_edges import cut_edges
from course_lib.pictures.gather_and_drop import gather_and_drop
from course_lib.pictures.layer_by_time import layer_by_time
from course_lib.pictures.link import link
from course_lib.pictures.link_matrix import link_matrix
from course_lib.pictures.losses import losses
from course_lib.pictures.memory_bars import memory
from course_lib.pictures.mesh import mesh
from course_lib.pictures.message_arrows import messages
from course_lib.pictures.padding import padding
from course_lib.pictures.picture import Picture
from course_lib.pictures.placement_bars import placement
from course_lib.pictures.plan_bars import plan_bars
from course_lib.pictures.schedule_chart import schedule
from course_lib.pictures.split_cell import split_cell
from course_lib.pictures.timeline import timeline
from course_lib.pictures.widgets import (
    explore_all_reduce,
    explore_batches,
    explore_memory,
    explore_meshes,
    explore_placement,
    explore_scaling,
    explore_schedules,
    schedule_bench,
)

__all__ = [
    "Picture",
    "comparison",
    "curves",
    "cut_edges",
    "explore_all_reduce",
    "explore_batches",
    "explore_memory",
    "explore_meshes",
    "explore_placement",
    "explore_scaling",
    "explore_schedules",
    "gather_and_drop",
    "layer_by_time",
    "link",
    "link_matrix",
    "losses",
    "memory",
    "mesh",
    "messages",
    "padding",
    "panels",
    "placement",
    "plan_bars",
    "schedule",
    "schedule_bench",
    "split_cell",
    "timeline",
]
