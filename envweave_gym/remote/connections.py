"""Requests that another thread can cut, whatever they are waiting for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from envweave_gym.remote.dialling import at_unix_socket

_Keep = Callable[[socket.socket], None]


class CuttableSession(requests.Session):
    """A session that makes one request at a time, and whose connection can be cut.

    The timeouts of ``requests`` hold for each piece of an answer, of which a peer may send many, and nothing
    else ends a request that has begun.
    """

    def __init__(self, proxy: str | None, certificates: str | None, path: str | None = None) -> None:
        """``certificates`` are those to trust, where they are not those of ``requests``; ``path`` is where
        the server has a Unix socket, if that is what it listens on.

        Nothing else counts that is around this process: no ``.netrc`` takes the place of the token.
        """
        super().__init__()
        self.trust_env = False
        self.proxies = {} if proxy is None else {"http": proxy, "https": proxy}
        self.verify = certificates or True
        self.is_cut = False
        self._handle: socket.socket | None = None
        self._pid = os.getpid()
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Adapter(self._keep, path))

    def cut(self) -> None:
        """End the connection, and all that are still to come; in a forked process only let go of it."""
        self.is_cut = True
        self._let_go()
        self.close()

    def _keep(self, opened: socket.socket) -> None:
        """Remember a connection, by a handle that is still there when TLS has taken over the first."""
        self._let_go()
        self._handle = opened.dup()
        if self.is_cut:
            self._let_go()

    def _let_go(self) -> None:
        handle, self._handle = self._handle, None
        if handle is None:
            return
        if os.getpid() == self._pid:
            with suppress(OSError):
                handle.shutdown(socket.SHUT_RDWR)
        handle.close()


class _Adapter(HTTPAdapter):
    """Shows the sockets of its connections to ``keep``."""

    def __init__(self, keep: _Keep, path: str | None) -> None:
        self._keep, self._path = keep, path
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        _watch(self.poolmanager, self._keep, self._path)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        known = proxy in self.proxy_manager
        manager = super().proxy_manager_for(proxy, **options)
        if not known:
            _watch(manager, self._keep, None)
        return manager


def _watch(manager: Any, keep: _Keep, path: str | None) -> None:
    pools: dict[str, Any] = manager.pool_classes_by_scheme
    manager.pool_classes_by_scheme = {scheme: _watched(pool, keep, path) for scheme, pool in pools.items()}


def _watched(pool: Any, keep: _Keep, path: str | None) -> Any:
    """The same kind of pool, which shows the sockets that it opens before anything is said through them."""

    class Connection(pool.ConnectionCls):
        def _new_conn(self) -> Any:
            opened = super()._new_conn() if path is None else at_unix_socket(path, self.timeout)
            keep(opened)
            return opened

    return type(pool.__name__, (pool,), {"ConnectionCls": Connection})
