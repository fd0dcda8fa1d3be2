"""Helpers for the operating system: per-process state, file locks, process identities, private folders."""
