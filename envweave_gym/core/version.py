"""The version of both packages, in a module without imports that every other module may import."""

__version__ = "0.1.0"
