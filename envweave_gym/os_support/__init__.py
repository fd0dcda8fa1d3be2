"""Mechanisms of the operating system: state of one process, file locks, process identities, folders."""
