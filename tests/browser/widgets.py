"""All widgets of the course, each in a cell of one notebook."""

from __future__ import annotations

import json
from pathlib import Path

IMPORTS = """
from course_lib.data_parallel import explore_scaling
from course_lib.messages import explore_all_reduce
from course_lib.model_parallel import BlockCost, explore_placement
from course_lib.one_device import explore_memory
from course_lib.padding import explore_batches
from course_lib.pipeline import explore_schedules, schedule_bench
from course_lib.sharding import explore_meshes
"""
WIDGETS = {
    "all-reduce, 4 ranks": "explore_all_reduce(4)",
    "schedule bench, 3 stages": "schedule_bench(3, 4)",
    "scaling": "explore_scaling()",
    "meshes of 16 devices": "explore_meshes()",
    "memory of a step": "explore_memory()",
    "schedules, 4 stages": "explore_schedules()",
    "placement of 10 blocks": "explore_placement([BlockCost(0.01, 2**20)] * 10, 4)",
    "batches of 5,000 sequences": "explore_batches([1 + number % 60 for number in range(5000)])",
}


def write_notebook(path: Path, *sources: str) -> None:
    """A notebook with these cells."""
    cells = [
        {"cell_type": "code", "execution_count": None, "id": f"c{n}", "metadata": {}, "outputs": [], "source": source}
        for n, source in enumerate(sources)
    ]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    path.write_text(json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))
