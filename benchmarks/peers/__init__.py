"""What we are measured against, each in a process of its own, openenv in a venv of its own."""
