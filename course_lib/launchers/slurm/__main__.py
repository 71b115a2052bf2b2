"""Run one node of a Slurm job: `srun --ntasks-per-node=1 python -m course_lib.launchers.slurm FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from course_lib.launchers.slurm.node import main

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
