"""Base classes of environments over the rows of a data set."""
