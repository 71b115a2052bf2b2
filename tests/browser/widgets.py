"""All widgets of the course, each in a cell of one notebook."""

from __future__ import annotations

import json
from pathlib import Path

IMPORTS = "from course_lib import pictures\nfrom course_lib.planning import BlockCost"
WIDGETS = {
    "all-reduce, 4 ranks": "pictures.explore_all_reduce(4)",
    "schedule bench, 3 stages": "pictures.schedule_bench(3, 4)",
    "scaling": "pictures.explore_scaling()",
    "meshes of 16 devices": "pictures.explore_meshes()",
    "memory of a step": "pictures.explore_memory()",
    "schedules, 4 stages": "pictures.explore_schedules()",
    "placement of 10 blocks": "pictures.explore_placement([BlockCost(0.01, 2**20)] * 10, 4)",
    "batches of 5,000 sequences": "pictures.explore_batches([1 + number % 60 for number in range(5000)])",
}


def write_notebook(path: Path, *sources: str) -> None:
    """A notebook with these cells."""
    cells = [
        {"cell_type": "code", "execution_count": None, "id": f"c{n}", "metadata": {}, "outputs": [], "source": source}
        for n, source in enumerate(sources)
    ]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    path.write_text(json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))
