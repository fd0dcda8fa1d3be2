"""Data sets as sequences of typed rows, read from files or the Hugging Face hub, or generated.

Nothing here imports environments.
"""
