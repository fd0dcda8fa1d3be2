"""Servers in Ray actors."""
