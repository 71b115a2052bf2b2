"""`python -m course_lib ...` is `course ...`, also under torchrun."""

from course_lib.cli import command

if __name__ == "__main__":
    command()
