"""Grading a class: what was handed in, run in a sandbox, judged outside, and written down."""
