"""Explain why a launch failed: where each rank is, which collectives it called, which peers it lost."""
