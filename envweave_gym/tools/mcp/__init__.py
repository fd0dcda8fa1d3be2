"""Client of MCP servers: their tools as Python functions."""
