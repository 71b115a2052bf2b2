"""The exercises of lesson 10, other frameworks."""
