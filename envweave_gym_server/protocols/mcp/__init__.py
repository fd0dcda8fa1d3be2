"""The Model Context Protocol: runners make and reset environments at ``/mcp``, agents act at ``/mcp/SESSION``."""
