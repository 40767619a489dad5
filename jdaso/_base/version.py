"""The version of jdaso."""

__version__ = "0.1.0"
