"""Environments of OpenEnv servers: names, sessions, spaces from JSON schemas, servers that are started."""
