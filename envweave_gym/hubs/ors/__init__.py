"""Environments of servers that speak the Open Reward Standard."""
