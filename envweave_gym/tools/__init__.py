"""Tools that programs and models may call: Python functions, and tools of MCP servers.

The client for MCP servers is :mod:`envweave_gym.tools.mcp.client`; importing this package loads none of it.
"""

from __future__ import annotations

from envweave_gym.core.faults import ToolError
from envweave_gym.tools.registry import ToolRegistry
from envweave_gym.tools.tool import Parameter, Tool

__all__ = ["Parameter", "Tool", "ToolError", "ToolRegistry"]
