"""Plain HTTP and JSON: what ``curl`` and people use."""
