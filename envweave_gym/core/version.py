"""The version of both packages, in a module that every room may import."""

__version__ = "0.1.0"
