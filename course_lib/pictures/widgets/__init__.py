"""Interactive widgets for notebooks: each shows something that a still picture cannot.

Where widgets cannot run, on GitHub for example, a still picture takes their place.
"""
