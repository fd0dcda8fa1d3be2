"""The program that the atlas runs in the Python of a suite, on the standard library alone."""
