"""MCP servers that all environments of this process share which ask for the same: each is started once."""

from __future__ import annotations

import os
import threading
import weakref

from envweave_gym.tools.mcp import McpServer
from envweave_gym.tools.mcp_spec import ServerSpec

_lock = threading.Lock()
_users: dict[object, tuple[McpServer, int]] = {}
"""The servers in use, and by how many."""


class Share:
    """One user's part in a server, which ends with the last of them that is closed or forgotten."""

    def __init__(self, spec: ServerSpec) -> None:
        key = spec.key()
        with _lock:
            self.server, users = _users.get(key) or (McpServer(spec), 0)
            _users[key] = self.server, users + 1
        self._end = weakref.finalize(self, _give_back, key)

    def close(self) -> None:
        """Have no part in it any more."""
        self._end()


def _give_back(key: object) -> None:
    with _lock:
        server, users = _users.pop(key)
        if users > 1:
            _users[key] = server, users - 1
    if users == 1:
        server.close()


def _renew_lock() -> None:
    """In a forked process: a thread of the parent may have held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
