"""MCP servers that all environments of this process share which ask for the same: each is started once."""

from __future__ import annotations

import threading
import weakref

from envweave_gym.os_support.process_local import ProcessLocal
from envweave_gym.tools.mcp.client import McpServer
from envweave_gym.tools.mcp.server_spec import ServerSpec

_lock = ProcessLocal(threading.RLock)  # the same thread may come again: collecting garbage ends shares


class _Used:
    """A server, and how many share it."""

    def __init__(self, server: McpServer) -> None:
        self.server, self.users = server, 0


_used: dict[object, _Used] = {}


class Share:
    """One user's part in a server, which ends with the last of them that is closed or forgotten."""

    def __init__(self, spec: ServerSpec) -> None:
        key = spec.key()
        with _lock.value:
            used = _used.get(key) or _Used(McpServer(spec))
            used.users += 1
            _used[key] = used  # again, as its last share may have ended since it was found
        self.server = used.server
        self._end = weakref.finalize(self, _give_back, key)

    def close(self) -> None:
        """Have no part in it any more."""
        self._end()


def _give_back(key: object) -> None:
    with _lock.value:
        used = _used[key]
        used.users -= 1
        if used.users:
            return
        del _used[key]
    used.server.close()
