"""The predictions and exercises of the lessons: one package per lesson, one file per exercise.

`course_lib.checks` finds them by their path. In the grading sandbox this folder is empty.
"""
