"""The exercises of lesson 03, padding and masking."""
