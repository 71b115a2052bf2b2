"""One launch: the notebook, a supervisor, and the ranks, and what they say to each other."""
