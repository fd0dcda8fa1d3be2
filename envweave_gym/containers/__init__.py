"""Containers: how the engine is reached, what a container may do, and how leftovers are found."""
