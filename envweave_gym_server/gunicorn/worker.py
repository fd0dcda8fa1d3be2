"""The process that does the work: gunicorn's threaded worker, which says no where it has no room."""

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
from envweave_gym_server.gunicorn.reading import PROMPT, Reading, Waits, is_readable
from envweave_gym_server.protocols.client_sockets import bound_waits

if TYPE_CHECKING:
    from envweave_gym_server.gunicorn.serve import Server

_FULL = msgspec.json.encode(
    {"error": "AtCapacity", "message": "the server has no room for another connection; come again"}
)
_TURNED_AWAY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Retry-After: 1\r\nContent-Length: %d\r\n\r\n%s" % (len(_FULL), _FULL)
)
_RESERVED_FILES = 32
_KEPT_ALIVE = 1024
"""So many connections may be open that ask nothing just now."""
_PATIENCE = 0.05
_LATER: Any = gthread._DEFER  # pyright: ignore[reportAttributeAccessIssue] - its stubs are older
"""What tells the loop to wait for the first byte."""


class Worker(ThreadWorker):
    """Takes as many connections as it has threads and files for, and answers all others with 503.

    gunicorn alone would let them wait without a word, and end when there are no files left.
    """

    def init_process(self) -> None:
        """Start to work."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(self.cfg.threads + _KEPT_ALIVE, files - _RESERVED_FILES - files // 8)
        self._waits = Waits(cast("Server", self.app).settings.client_timeout)
        self._spare: int | None = None
        self._keep_spare()
        super().init_process()

    def is_parent_alive(self) -> bool:
        """Leave it to the guard, which ends WebSockets too."""
        return True

    def murder_keepalived(self, force: bool = False) -> None:
        """Close connections that ask nothing; all of them once the server has stopped."""
        if force or not self.alive:
            for connection in self.keepalived_conns:
                connection.timeout = 0.0
        super().murder_keepalived()

    def murder_pending(self) -> None:
        """Close connections that have never asked anything; all of them once the server has stopped."""
        if not self.alive:
            for connection in self.pending_conns:
                connection.timeout = 0.0
        super().murder_pending()

    def accept(self, listener: Any) -> None:
        """Take a connection, or turn it away."""
        if self.nr_conns >= self._most:
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
        """Answer a request, or let the loop wait with a client that asks nothing yet.

        gunicorn would take a file of its own to wait for the first byte, and might have none left; and it
        would say goodbye from its only loop, which nobody else could use for as long as the client stays.
        """
        if not conn.initialized:
            bound_waits(conn.sock, self._waits.seconds)
            if not is_readable(conn.sock, PROMPT):
                return _LATER
            conn.data_ready = True
            conn.init()
            conn.parser.unreader = Reading(conn.sock, self._waits)
        reading: Reading = conn.parser.unreader
        reading.begin()
        try:
            keep = super().handle(conn)
        finally:
            reading.end_head()
        if not keep:
            with suppress(OSError):  # a WebSocket has closed it
                conn.close(graceful=not reading.gave_up)
            conn.close = _is_closed
        return keep

    def handle_request(self, req: Any, conn: Any) -> Any:
        """Answer a request whose head has come."""
        conn.parser.unreader.end_head()
        return super().handle_request(req, conn)

    def _turn_away(self, listener: Any) -> None:
        """Say why, over the file that is kept for this."""
        if self._spare is None:
            time.sleep(_PATIENCE)
        else:
            os.close(self._spare)
            self._spare = None
            with suppress(OSError):  # it has left, or does not listen
                client, _ = listener.accept()
                with client:
                    _say(client)
        self._keep_spare()

    def _keep_spare(self) -> None:
        with suppress(OSError):  # then the next one waits
            self._spare = os.open(os.devnull, os.O_RDONLY)


def _is_closed(graceful: bool = False) -> None:
    """Closed again it would raise, and gunicorn count it as two connections that have ended."""


def _say(client: socket.socket) -> None:
    """Answer a request that is hardly looked at: unread, its bytes would cut the answer short."""
    client.settimeout(_PATIENCE)
    with suppress(TimeoutError):
        client.recv(1 << 16)
    client.sendall(_TURNED_AWAY)
    client.shutdown(socket.SHUT_WR)
