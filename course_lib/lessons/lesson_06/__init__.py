"""The exercises of lesson 06, pipeline parallelism."""
