"""IDs of environments: the table that declares them, the grammar of names, ``make``, and their entry points."""
