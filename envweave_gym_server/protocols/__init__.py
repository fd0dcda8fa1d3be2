"""The protocols that a server speaks, one folder each."""
