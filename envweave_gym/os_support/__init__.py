"""Operating system helpers: state of one process, file locks, process identities, private folders."""
