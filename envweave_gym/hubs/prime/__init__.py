"""Environments of the Prime Environments Hub: installing them, and playing their programs."""
