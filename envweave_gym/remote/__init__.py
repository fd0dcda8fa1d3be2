"""Environments on a server, which behave as those in this process do."""
