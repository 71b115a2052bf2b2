"""Pictures of what a run returned. Each has a text description for readers who cannot see it."""

from course_lib.pictures.bars import explore_memory, explore_placement, memory, placement, plan_bars
from course_lib.pictures.bench import schedule_bench
from course_lib.pictures.communication import collectives, cut_edges, link, link_matrix
from course_lib.pictures.curves import curves, losses, padding
from course_lib.pictures.picture import Picture
from course_lib.pictures.schedule_chart import explore_schedules, schedule
from course_lib.pictures.svg import diagram
from course_lib.pictures.timeline import comparison, gather_and_drop, messages, timeline
from course_lib.pictures.widgets.all_reduce import explore_all_reduce
from course_lib.pictures.widgets.batches import explore_batches
from course_lib.pictures.widgets.meshes import explore_meshes
from course_lib.pictures.widgets.scaling import explore_scaling

__all__ = [
    "Picture", "collectives", "comparison", "curves", "cut_edges", "diagram", "explore_all_reduce", "explore_batches",
    "explore_memory", "explore_meshes", "explore_placement", "explore_scaling", "explore_schedules", "gather_and_drop",
    "link", "link_matrix", "losses", "memory", "messages", "padding", "placement", "plan_bars", "schedule",
    "schedule_bench", "timeline",
]  # fmt: skip
