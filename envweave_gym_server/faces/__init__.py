"""The protocols a server speaks, one module each."""
