"""Vector environments: native ones, rows of single environments, and rows in groups."""
