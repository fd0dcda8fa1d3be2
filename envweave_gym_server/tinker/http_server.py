"""WSGI server with one thread for each connection, up to a limit: results are long polls, which hold a thread.

A connection over the limit gets status 429 with ``Retry-After`` and is closed; the SDK waits and tries again.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

from flask import Flask
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from envweave_gym_server.core.logs import trace_of
from envweave_gym_server.tinker.api_errors import RETRY_AFTER_S

MAX_CONNECTIONS, MAX_REFUSALS = 1024, 64
IDLE_S = 60.0
"""A connection from which nothing comes for this time is closed; each carries one request."""
_REFUSAL_S = 2.0
_BODY = b'{"detail": "too many connections are open here; try again"}'
_REFUSAL = (
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nRetry-After: %d\r\nConnection: close\r\n\r\n%s"
) % (len(_BODY), RETRY_AFTER_S, _BODY)
_log = logging.getLogger(__name__)


@contextmanager
def _released_on_error(slots: threading.BoundedSemaphore) -> Generator[None]:
    """Give a slot back if its thread cannot be started."""
    try:
        yield
    except BaseException:
        slots.release()
        raise


class _Handler(WSGIRequestHandler):
    """One connection; small replies leave in one packet and are not delayed."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = IDLE_S

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        """Log nothing: failed requests are logged where they fail."""

    def log_error(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing: what ends here is a connection that was idle, or not HTTP."""


class HttpServer(ThreadedWSGIServer):
    """The server of an application on a listening socket."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, app: Flask, listener: socket.socket, most: int = MAX_CONNECTIONS) -> None:
        """Serve on ``listener``, at most ``most`` connections at a time."""
        host, port = listener.getsockname()[:2]
        super().__init__(host, port, app, handler=_Handler, fd=listener.fileno())
        self._slots = threading.BoundedSemaphore(most)
        self._refusals = threading.BoundedSemaphore(MAX_REFUSALS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a connection, or of its refusal."""
        if self._slots.acquire(blocking=False):
            with _released_on_error(self._slots):
                super().process_request(request, client_address)
        elif self._refusals.acquire(blocking=False):
            with _released_on_error(self._refusals):
                threading.Thread(target=self._refuse, args=(request,), daemon=True).start()
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection until it closes."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what ended a connection's thread, unless it is that the client has gone away."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            _log.error("a connection failed", extra=trace_of(error))

    def _refuse(self, connection: socket.socket) -> None:
        """Read the head of a request, so that the reply is not lost by a reset, and send the refusal."""
        try:
            with suppress(OSError):
                connection.settimeout(_REFUSAL_S)
                connection.recv(1 << 16)
                connection.sendall(_REFUSAL)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1 << 16)
        finally:
            connection.close()
            self._refusals.release()
