"""Faults, spaces, seeds, actions and checks of arguments: no I/O, and nothing else of this package."""
