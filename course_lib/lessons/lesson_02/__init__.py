"""The exercises of lesson 02, data parallelism."""
