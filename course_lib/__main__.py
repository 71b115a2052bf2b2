"""The `course` command, also available as `python -m course_lib` and under torchrun."""

from course_lib.runtime.interrupt import exiting_on_interrupt

with exiting_on_interrupt():  # importing what it needs takes a while
    from course_lib.command import command

if __name__ == "__main__":
    command()
