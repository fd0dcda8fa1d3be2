"""Data sets as sequences of typed rows, read from files or the Hugging Face hub, or generated.

This package does not import environments.
"""
