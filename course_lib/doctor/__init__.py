"""`course doctor`: what this machine has and what will work on it; with ranks, how fast each one is.

The code that needs PyTorch is in `doctor.health`, so you can import this package without it.
"""

from course_lib.doctor.machine_report import Finding, Report, examine

__all__ = ["Finding", "Report", "examine"]
