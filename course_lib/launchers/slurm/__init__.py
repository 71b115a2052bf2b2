"""Run ranks on the nodes of a Slurm cluster."""

from course_lib.launchers.slurm.job import BadPlace, Slurm, slurm

__all__ = ["BadPlace", "Slurm", "slurm"]
