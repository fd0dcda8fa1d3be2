"""gunicorn's threaded worker with a limit of connections; those beyond the limit get a 503 at once."""

from __future__ import annotations

import os
import resource
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec
from gunicorn.workers import gthread
from gunicorn.workers.gthread import ThreadWorker

from envweave_gym_server.core.errors import is_exhaustion
from envweave_gym_server.gunicorn.request_reader import PROMPT_S, RequestReader, SlowClients, is_readable
from envweave_gym_server.protocols.client_sockets import bound_waits

if TYPE_CHECKING:
    from envweave_gym_server.gunicorn.server import GunicornServer

_FULL = msgspec.json.encode(
    {"error": "AtCapacity", "message": "the server has no room for another connection; come again"}
)
_TURNED_AWAY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Retry-After: 1\r\nContent-Length: %d\r\n\r\n%s" % (len(_FULL), _FULL)
)
_RESERVED_FILES = 32
_IDLE_CONNECTIONS = 1024
"""Limit of connections without a request."""
_TURN_AWAY_S = 0.05
_DEFERRED: Any = gthread._DEFER  # pyright: ignore[reportAttributeAccessIssue] - its stubs are older
"""Result of :meth:`Worker.handle` that makes the loop wait for the first byte of a connection."""


class Worker(ThreadWorker):
    """gunicorn's worker process, which takes as many connections as it has threads and files for.

    It answers all others with 503. gunicorn alone lets them wait without a response, and ends when there are no files
    left.
    """

    def init_process(self) -> None:
        """Compute the limit of connections, reserve a file, and run the worker's loop."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = min(self.cfg.threads + _IDLE_CONNECTIONS, files - _RESERVED_FILES - files // 8)
        self._slow = SlowClients(cast("GunicornServer", self.app).service.settings.client_timeout)
        self._spare: int | None = None
        self._open_spare()
        super().init_process()

    def is_parent_alive(self) -> bool:
        """Return ``True``: the drain watches the parent instead, and ends WebSockets too."""
        return True

    def murder_keepalived(self, force: bool = False) -> None:
        """Close idle connections after their timeout, or all of them once the server has stopped."""
        if force or not self.alive:
            for connection in self.keepalived_conns:
                connection.timeout = 0.0
        super().murder_keepalived()

    def murder_pending(self) -> None:
        """Close connections that never sent anything after their timeout, or all once the server has stopped."""
        if not self.alive:
            for connection in self.pending_conns:
                connection.timeout = 0.0
        super().murder_pending()

    def accept(self, listener: Any) -> None:
        """Accept a connection, or answer 503 if the limit is reached or files or threads have run out."""
        if self.nr_conns >= self._limit:
            self._turn_away(listener)
            return
        before = self.nr_conns
        try:
            super().accept(listener)
        except (OSError, RuntimeError, MemoryError) as error:
            if not is_exhaustion(error):
                raise
            self.nr_conns = before
            self._turn_away(listener)

    def handle(self, conn: Any) -> Any:
        """Answer a request, or make the loop wait for a client that has sent nothing yet.

        gunicorn alone would open a file to wait for the first byte, and might have none left. It would also
        close connections in its only loop, which then waits for each client.
        """
        if not conn.initialized:
            bound_waits(conn.sock, self._slow.limit_s)
            if not is_readable(conn.sock, PROMPT_S):
                return _DEFERRED
            conn.data_ready = True
            conn.init()
            conn.parser.unreader = RequestReader(conn.sock, self._slow)
        reader: RequestReader = conn.parser.unreader
        reader.begin_head()
        try:
            keep = super().handle(conn)
        finally:
            reader.end_head()
        if not keep:
            with suppress(OSError):  # a WebSocket has closed it
                conn.close(graceful=not reader.head_timed_out)
            conn.close = _is_closed
        return keep

    def handle_request(self, req: Any, conn: Any) -> Any:
        """Answer a request whose headers have been read."""
        conn.parser.unreader.end_head()
        return super().handle_request(req, conn)

    def _turn_away(self, listener: Any) -> None:
        """Accept a connection with the file descriptor that is reserved for this, and answer 503."""
        if self._spare is None:
            time.sleep(_TURN_AWAY_S)
        else:
            os.close(self._spare)
            self._spare = None
            with suppress(OSError):  # it has left, or does not read
                client, _ = listener.accept()
                with client:
                    _send_503(client)
        self._open_spare()

    def _open_spare(self) -> None:
        with suppress(OSError):  # then the next one waits
            self._spare = os.open(os.devnull, os.O_RDONLY)


def _is_closed(graceful: bool = False) -> None:
    """Replacement for ``close`` of a connection that is closed already; does nothing.

    A second close would raise, and gunicorn would count two connections that have ended.
    """


def _send_503(client: socket.socket) -> None:
    """Read some of the request and answer 503.

    Closing a socket with unread bytes would discard the answer.
    """
    client.settimeout(_TURN_AWAY_S)
    with suppress(TimeoutError):
        client.recv(1 << 16)
    client.sendall(_TURNED_AWAY)
    client.shutdown(socket.SHUT_WR)
