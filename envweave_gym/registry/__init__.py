"""IDs: the table that declares them, the grammar of names, and the entry points of the IDs."""
