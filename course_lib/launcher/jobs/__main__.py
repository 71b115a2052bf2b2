"""Run a function that was sent to the nodes of a Slurm job: `srun python -m course_lib.launcher.jobs`."""

import os
import pickle
import sys
from pathlib import Path

from course_lib.launcher.jobs.slurm import FOLDER

if __name__ == "__main__":
    spec, place, sys.path[:] = pickle.loads(Path(os.environ[FOLDER], "job").read_bytes())
    place.run(spec, timeout=None)
