"""Server end of WebSockets: one per session, whose frames the thread of its request reads itself.

No thread stands between the socket and the environment, which makes a step cheap. While a step runs, that
thread cannot answer pings, so :class:`WebSockets` does, from one thread for all connections.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

from envweave_gym.net.websocket import (
    BINARY,
    CLOSE,
    GOING_AWAY,
    NORMAL,
    PING,
    PONG,
    TOO_BIG,
    FrameReader,
    MessageTooLarge,
    accept_token,
    frame_of,
)
from envweave_gym_server.core.errors import BadRequest
from envweave_gym_server.protocols.client_sockets import bound_waits, may_be_silent, socket_of

_CHUNK_BYTES = 1 << 16
_KEY_CHARS = 24
_LINGER_S = 1.0
"""Time for the client to read the close frame, and to close."""
_LONGEST_REASON_BYTES = 120
"""Limit of bytes of a close reason; a control frame holds 125, of which two are the code."""
_MOST_WAITING = 64
"""Limit of frames of a client that are read while its step still runs."""
_SWITCHING = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
)
SLOW_S = 0.5
"""Duration of a step from which one thread for all connections answers its pings."""


class Connection:
    """Server end of one WebSocket, over the socket of the HTTP request that asked for it."""

    def __init__(self, environ: dict[str, Any], largest: int, timeout: float) -> None:
        """Check the handshake; raise ``BadRequest`` if it is not valid.

        ``largest`` limits the bytes of a message. ``timeout`` is the number of seconds in which the client may
        read nothing.
        """
        key = str(environ.get("HTTP_SEC_WEBSOCKET_KEY", ""))
        if environ.get("HTTP_SEC_WEBSOCKET_VERSION") != "13" or len(key) != _KEY_CHARS:
            raise BadRequest("that is no handshake of a WebSocket of version 13")
        self._switching = _SWITCHING + accept_token(key).encode() + b"\r\n\r\n"
        client = socket_of(environ)
        if client is None:
            raise BadRequest("this server gives its requests no sockets, and takes no WebSockets")
        self.socket = client
        bound_waits(client, timeout)
        self.stepping_since: float | None = None
        self.stopping = False
        self._reading, self._sending = threading.Lock(), threading.RLock()
        self._reader, self._largest = FrameReader(masked=True, largest=largest), largest
        self._ready: deque[bytes] = deque()
        self._kept = b""
        self._open = True
        self._sending.acquire()  # until the handshake is answered

    def open(self) -> None:
        """Answer the handshake, after which the client may send; call this in the thread that created the object."""
        try:
            self.socket.sendall(self._switching)
            may_be_silent(self.socket)
        except OSError:  # the client has left
            self._open = False
        finally:
            self._sending.release()

    def left(self) -> bool:
        """Return whether the client has disconnected; any thread may ask, also while a step runs."""
        if self._open:
            with suppress(OSError, ValueError):  # its own thread has closed it meanwhile
                self.answer_pings()
        return not self._open

    def receive(self) -> bytes | None:
        """Return the next frame, or ``None`` when the client has disconnected."""
        while self._open and not self._ready:
            with self._reading:
                if not self._ready:
                    self._read()
        return self._ready.popleft() if self._ready else None

    @property
    def is_open(self) -> bool:
        """Whether neither end has closed the connection, as far as its data have been read."""
        return self._open

    @property
    def has_more(self) -> bool:
        """Whether another frame has been received already."""
        return bool(self._ready)

    def answer_pings(self) -> None:
        """Receive some data without waiting, and answer pings in it; whole frames are kept for :meth:`receive`.

        Does nothing while a reply is being sent, because its client no longer waits.
        """
        if not self._reading.acquire(blocking=False):
            return
        try:
            if self._sending.acquire(blocking=False):
                try:
                    self._read_what_is_there()
                finally:
                    self._sending.release()
        finally:
            self._reading.release()

    def _read_what_is_there(self) -> None:
        poller = select.poll()
        poller.register(self.socket, select.POLLIN)
        if self._open and len(self._ready) < _MOST_WAITING and poller.poll(0):
            self._read()

    def _read(self) -> None:
        try:
            data = self.socket.recv(_CHUNK_BYTES)
            if not data:
                self._open = False
                return
            self._reader.feed(data)
            while self._open and (message := self._reader.next()) is not None:
                self._take(*message)
        except MessageTooLarge:
            self._refuse_size()
        except OSError:  # or what came is no frame
            self._open = False

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == PING:
            self._send(payload, PONG)
        elif kind == CLOSE:
            self._send(payload, CLOSE)
            self._open = False
        elif kind != PONG:
            self._ready.append(payload)

    def _refuse_size(self) -> None:
        """Close the connection because a frame is too large, and read on for a moment, so that the client sees why."""
        self.close(TOO_BIG, f"a frame holds at most {self._largest} bytes")
        self.linger()

    def linger(self) -> None:
        """Read on for a moment after :meth:`close`: a reset of the connection could overtake what was sent."""
        self.wake(socket.SHUT_WR)
        until = time.monotonic() + _LINGER_S
        with suppress(OSError):
            self.socket.settimeout(_LINGER_S)
            while time.monotonic() < until and self.socket.recv(_CHUNK_BYTES):
                pass

    def send(self, frame: bytes, *, later: bool = False, kind: int = BINARY) -> None:
        """Send a frame; with ``later`` keep it, and send it together with the next; ``kind`` may be ``TEXT``.

        :meth:`receive` notices a client that has disconnected. The connection of a client that reads no more is
        given up, together with the frames received from it; the client is to send them again.
        """
        data = frame_of(frame, masked=False, kind=kind)
        if later:
            self._kept += data
            return
        with self._sending:
            try:
                self.socket.sendall(self._kept + data if self._kept else data)
                self._kept = b""
            except (BlockingIOError, TimeoutError):
                self._give_up()
            except OSError:
                self._open = False

    def _give_up(self) -> None:
        self._open = False
        self._ready.clear()
        self.wake(socket.SHUT_RDWR)

    def _send(self, payload: bytes, kind: int) -> None:
        """Send a pong or a close frame, without waiting for a client that does not read: it is given up."""
        if not self._sending.acquire(timeout=_LINGER_S):
            return
        try:
            data = frame_of(payload, masked=False, kind=kind)
            if self.socket.send(data, socket.MSG_DONTWAIT) < len(data):
                self._give_up()
        except BlockingIOError:
            self._give_up()
        except OSError:
            self._open = False
        finally:
            self._sending.release()

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Send a close frame with code and reason, and end the connection."""
        if self._open:
            self._send(code.to_bytes(2, "big") + reason.encode()[:_LONGEST_REASON_BYTES], CLOSE)
            self._open = False

    def wake(self, how: int = socket.SHUT_RD) -> None:
        """Shut the socket down (by default for reading), so that :meth:`receive` returns at once."""
        with suppress(OSError):  # the client was faster
            self.socket.shutdown(how)

    def hang_up(self) -> None:
        """Close the socket."""
        self.wake(socket.SHUT_RDWR)
        self.socket.close()


class WebSockets:
    """All open connections, and a thread that answers pings and notices disconnects during long steps."""

    def __init__(self) -> None:
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def present(self) -> int:
        """Number of connections whose clients have not disconnected; this checks each socket."""
        with self._lock:
            connections = list(self._connections)
        return sum(not connection.left() for connection in connections)

    def add(self, connection: Connection) -> None:
        """Watch a connection."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name="watch", daemon=True)
                thread.start()
                self._thread = thread
            self._connections.add(connection)

    def remove(self, connection: Connection) -> None:
        """Stop watching a connection."""
        with self._lock:
            self._connections.discard(connection)

    def _watch(self) -> None:
        while not self._stopped.wait(SLOW_S):
            now = time.monotonic()
            with self._lock:
                connections = list(self._connections)
            for connection in connections:
                since = connection.stepping_since
                if since is not None and now - since > SLOW_S:
                    connection.left()

    def stop(self) -> None:
        """End the connections that wait for their clients; one with a running step ends after its reply."""
        self._stopped.set()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.stopping = True
            if connection.stepping_since is None:
                connection.close(GOING_AWAY, "the server is stopping")
                connection.wake()
