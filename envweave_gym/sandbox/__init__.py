"""Untrusted Python, in processes of its own."""
