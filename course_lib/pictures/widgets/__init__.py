"""Interactive widgets for notebooks: each shows something that a still picture cannot.

Where widgets cannot run, on GitHub for example, a still picture takes their place.
"""

from course_lib.pictures.widgets.all_reduce import explore_all_reduce
from course_lib.pictures.widgets.batches import explore_batches
from course_lib.pictures.widgets.bench import schedule_bench
from course_lib.pictures.widgets.memory import explore_memory
from course_lib.pictures.widgets.meshes import explore_meshes
from course_lib.pictures.widgets.placement import explore_placement
from course_lib.pictures.widgets.scaling import explore_scaling
from course_lib.pictures.widgets.schedules import explore_schedules

__all__ = [
    "explore_all_reduce", "explore_batches", "explore_memory", "explore_meshes", "explore_placement",
    "explore_scaling", "explore_schedules", "schedule_bench",
]  # fmt: skip
