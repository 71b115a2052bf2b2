"""The exercises of lesson 05, model parallelism."""
