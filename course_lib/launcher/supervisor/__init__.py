"""What runs in the supervisor's process, between a notebook and its ranks; `patience` serves the notebook, too."""
