"""IDs that a server offers, the arguments that clients may give, and the description of each ID."""
