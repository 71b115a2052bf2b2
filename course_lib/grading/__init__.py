"""Grading a class: submissions run in a sandbox, are judged outside it, and the marks are written to files."""
