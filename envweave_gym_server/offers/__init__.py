"""The IDs that a server serves, the arguments that clients may give, and the descriptions of each."""
