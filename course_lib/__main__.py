"""The `course` command, also available as `python -m course_lib` and under torchrun.

Importing what it needs takes a while, so Ctrl-C must end it cleanly before anything else is imported.
"""

from course_lib import interrupt

interrupt.exit_while_importing()

from course_lib.cli import command  # noqa: E402

if __name__ == "__main__":
    command()
