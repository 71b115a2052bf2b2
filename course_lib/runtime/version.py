"""The version, in a module that imports nothing: the build reads it without torch."""

__version__ = "1.0.0"
