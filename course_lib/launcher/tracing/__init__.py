"""What the ranks did, on one clock: one trace file for all of them, and which rank reached each collective last."""
