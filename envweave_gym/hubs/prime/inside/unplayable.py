"""The exception for packages that cannot be played."""

from __future__ import annotations


class Unplayable(Exception):
    """Raised for a package that cannot be played; another try would not help."""
