"""`course doctor`: what this machine has and what will therefore work; with ranks, how well each of them does.

What needs PyTorch is in `doctor.health`: this package can be imported where there is none.
"""

from course_lib.doctor.machine_report import Finding, Report, examine

__all__ = ["Finding", "Report", "examine"]
