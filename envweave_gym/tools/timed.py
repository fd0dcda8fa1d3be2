"""Requests whose whole answer has to come before a deadline, however slowly it drips.

The timeouts of ``requests`` hold for each piece of an answer, of which a peer may send many. Here every read
of a socket waits no longer than the call of its thread has time, so that a call needs no second thread.
"""

from __future__ import annotations

import io
import os
import socket
import threading
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies

from envweave_gym.tools.mcp.mcp_errors import left

if TYPE_CHECKING:
    from collections.abc import Generator

    from _typeshed import WriteableBuffer

_MOST_CONNECTIONS = 64


class _Call(threading.local):
    """What a thread is about; outside of calls there is no time."""

    deadline = 0.0


_call = _Call()


@contextmanager
def deadline_of_call(deadline: float) -> Generator[None]:
    """Let the reads of this thread wait until then."""
    before, _call.deadline = _call.deadline, deadline
    try:
        yield
    finally:
        _call.deadline = before


def timed_session(url: str) -> requests.Session:
    """A session for one server, for any number of threads; nothing but its headers shows who asks.

    Proxies and certificates are those of the environment; there is never a proxy before loopback.
    """
    session = requests.Session()
    session.trust_env = False
    session.proxies = {} if _is_here(url) else get_environ_proxies(url)
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
    session.mount(f"{urlsplit(url).scheme}://", _TimedAdapter(pool_maxsize=_MOST_CONNECTIONS))
    return session


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


class _TimedAdapter(HTTPAdapter):
    """Opens connections whose sockets look at the deadline."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self._time(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        known = proxy in self.proxy_manager
        manager = super().proxy_manager_for(proxy, **options)
        if not known:
            self._time(manager)
        return manager

    @staticmethod
    def _time(manager: Any) -> None:
        pools: dict[str, Any] = manager.pool_classes_by_scheme
        manager.pool_classes_by_scheme = {scheme: _timed(pool) for scheme, pool in pools.items()}


def _timed(pool: Any) -> Any:
    class Connection(pool.ConnectionCls):
        def connect(self) -> None:
            super().connect()
            self.sock: Any = _TimedSocket(self.sock)

    return type(pool.__name__, (pool,), {"ConnectionCls": Connection})


class _TimedSocket:
    """A socket, but for how long it waits."""

    def __init__(self, plain: socket.socket) -> None:
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def sendall(self, data: Any) -> None:
        self._plain.settimeout(left(_call.deadline))
        self._plain.sendall(data)

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        return io.BufferedReader(_Incoming(self._plain))


class _Incoming(io.RawIOBase):
    """What comes from a socket, while there is time."""

    def __init__(self, plain: socket.socket) -> None:
        self._plain, self._raw = plain, plain.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        self._plain.settimeout(left(_call.deadline))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()
