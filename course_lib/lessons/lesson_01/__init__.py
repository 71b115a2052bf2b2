"""The exercises of lesson 01, one device."""
