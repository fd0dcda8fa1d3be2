"""Vector environments: native ones (NumPy arrays), vectors of single environments, and groups of rows."""
