"""Fixtures of the tests of environments that run programs."""

from __future__ import annotations

from code_episodes import code_act as code_act
from mcp_servers import misbehaving as misbehaving
