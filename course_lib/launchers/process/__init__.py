"""The processes of one launch (the notebook, a supervisor, and the ranks) and the messages between them."""
