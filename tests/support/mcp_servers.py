"""MCP servers for tests: those that misbehave, and the published ones where they are installed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from absent import absent

from envweave_gym.tools.mcp.client import McpServer

HERE = Path(__file__).parent
INSTALLED = HERE.parents[1] / ".venv-mcp"
PYTHON, NODE = INSTALLED / "bin", INSTALLED / "node" / "node_modules" / ".bin"


@pytest.fixture
def misbehaving() -> Iterator[Callable[..., McpServer]]:
    """Makes servers that misbehave in the way that is named; they end with the test."""
    made: list[McpServer] = []

    def make(how: str, *arguments: Any, timeout: float = 5.0, **options: Any) -> McpServer:
        script = str(HERE / "mcp_misbehaving.py")
        command = [sys.executable, "-S", script, how, *map(str, arguments)]
        env = options.pop("env", {})
        server = McpServer.of({"command": command, "env": env}, name=how, timeout=timeout, **options)
        made.append(server)
        return server

    yield make
    for server in made:
        server.close()


def published(program: Path, *arguments: Any) -> list[str]:
    """The command of a published server; in CI it must be there."""
    if not program.exists():
        absent(f"{program.name} is missing", ".ci/mcp")
    return [str(program), *map(str, arguments)]


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pids: list[int], seconds: float = 2.0) -> bool:
    """Whether the processes end in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(map(is_alive, pids)):
            return True
        time.sleep(0.02)
    return False


def process_of(server: McpServer) -> psutil.Process:
    """The process of a server that runs, below its keeper."""
    connection: Any = server._session
    (found,) = psutil.Process(connection.transport._process.keeper_pid).children()
    return found
