"""Client for MCP servers, whose tools become Python functions."""
