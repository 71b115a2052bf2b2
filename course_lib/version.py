"""The version, in a module that imports nothing: the build reads it without torch."""

__version__ = "0.1.0"
