"""`python -m course_lib ...` is `course ...`, also under torchrun."""

from course_lib.cli import main
from course_lib.launchers.torchrun import leave

if __name__ == "__main__":
    leave(main())
