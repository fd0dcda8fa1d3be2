"""The IDs that a server serves, the arguments that clients may give, and the description of each ID."""
