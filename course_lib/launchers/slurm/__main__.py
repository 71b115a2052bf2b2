"""Run one node of a Slurm job: `srun --ntasks-per-node=1 python -m course_lib.launchers.slurm FOLDER`."""

import pickle
import sys
from pathlib import Path

from course_lib.launchers.slurm.node import run_node

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    spec, place, sys.path[:] = pickle.loads((folder / "job").read_bytes())
    sys.exit(run_node(spec, place, folder))
