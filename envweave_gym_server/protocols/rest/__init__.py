"""HTTP with JSON, for ``curl`` and for people."""
