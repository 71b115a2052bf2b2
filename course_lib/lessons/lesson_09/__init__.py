"""The exercises of lesson 09, real clusters."""
