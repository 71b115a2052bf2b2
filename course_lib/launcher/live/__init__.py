"""Ranks that stay alive between cells: each keeps its variables, and the process group survives a failed cell."""
