"""What the lessons ask: one package per lesson, with its predictions and one file per exercise.

`course_lib.checks` finds them by their place. In the grading sandbox this folder is empty.
"""
