"""Adapters that let other libraries use parts of this package."""
