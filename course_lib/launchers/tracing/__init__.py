"""What the ranks did, on one clock: a trace of all of them in one file, and who came last to each collective."""
