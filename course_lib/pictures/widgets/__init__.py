"""Interactive widgets for notebooks. Each shows something that a still picture cannot.

If widgets cannot run, as on GitHub, a still picture replaces them.
"""
