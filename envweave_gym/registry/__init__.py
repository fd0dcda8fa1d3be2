"""IDs: the table that declares them, the names that ``make`` takes, and the entry points of each ID."""
