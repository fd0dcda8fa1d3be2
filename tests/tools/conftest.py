"""Fixtures of the tests of tools."""

from __future__ import annotations

from mcp_servers import misbehaving as misbehaving
