"""Run ranks on the nodes of a Slurm cluster."""

from course_lib.launchers.slurm.cluster import Slurm, slurm
from course_lib.launchers.slurm.job import BadPlace

__all__ = ["BadPlace", "Slurm", "slurm"]
