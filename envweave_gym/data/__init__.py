"""Rows of data sets: where they come from, and what each of them is. Nothing here knows of environments."""
