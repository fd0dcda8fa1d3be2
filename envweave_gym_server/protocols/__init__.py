"""Protocols that a server speaks, one folder each."""
