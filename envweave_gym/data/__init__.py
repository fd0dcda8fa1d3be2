"""Data sets: their rows, and where they come from."""
