"""MCP servers shared by the environments of this process that describe one alike; each is started once."""

from __future__ import annotations

import threading
import weakref

from envweave_gym.os_support.process_local import ProcessLocal
from envweave_gym.tools.mcp.client import McpServer
from envweave_gym.tools.mcp.server_spec import ServerSpec

_lock = ProcessLocal(threading.RLock)  # reentrant: garbage collection may end shares at any time
_used: dict[object, _Used] = {}


class _Used:
    """A server, and the number of its shares."""

    def __init__(self, server: McpServer) -> None:
        self.server, self.users = server, 0


class Share:
    """A share of a server, which is closed with the last share."""

    def __init__(self, spec: ServerSpec) -> None:
        key = spec.key()
        with _lock.value:
            used = _used.get(key) or _Used(McpServer(spec))
            used.users += 1
            _used[key] = used  # again: the last share may have been collected since it was found
        self.server = used.server
        self._end = weakref.finalize(self, _give_back, key)

    def close(self) -> None:
        """Give the share back."""
        self._end()


def _give_back(key: object) -> None:
    with _lock.value:
        used = _used[key]
        used.users -= 1
        if used.users:
            return
        del _used[key]
    used.server.close()
