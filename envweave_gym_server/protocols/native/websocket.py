"""The step plane: one WebSocket a session, whose frames the thread of its request reads itself.

No thread stands between the socket and the environment, which is what makes a step cheap. While a step runs
that thread cannot answer pings, so :class:`WebSockets` does it, from one thread for all connections.
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

_CHUNK = 1 << 16
_KEY_LENGTH = 24
_LINGER_S = 1.0
"""How long the other end may take to read the close frame, and to close."""
_LONGEST_REASON = 120
"""Bytes; a frame that controls the connection holds 125, two of which are the code."""
_MOST_WAITING = 64
"""The limit of frames of a client that are read while its step still runs."""
_SWITCHING = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
)
SLOW_S = 0.5
"""While a step runs longer than this, one thread for all connections answers its pings."""


class Connection:
    """The server's end of a WebSocket, over the socket of the request that asked for it."""

    def __init__(self, environ: dict[str, Any], largest: int, timeout: float) -> None:
        """Read the handshake; what is none is answered as any bad request.

        ``timeout`` is how many seconds the client may take nothing of what it is sent.
        """
        key = str(environ.get("HTTP_SEC_WEBSOCKET_KEY", ""))
        if environ.get("HTTP_SEC_WEBSOCKET_VERSION") != "13" or len(key) != _KEY_LENGTH:
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
        """Answer the handshake, which lets the client speak; call it in the thread that has made this."""
        try:
            self.socket.sendall(self._switching)
            may_be_silent(self.socket)
        except OSError:  # the client has left
            self._open = False
        finally:
            self._sending.release()

    def left(self) -> bool:
        """Whether the client has left; any thread may ask, also while a step of its runs."""
        if self._open:
            with suppress(OSError, ValueError):  # its own thread has closed it meanwhile
                self.answer_pings()
        return not self._open

    def receive(self) -> bytes | None:
        """The next frame, or ``None`` when the client has left."""
        while self._open and not self._ready:
            with self._reading:
                if not self._ready:
                    self._read()
        return self._ready.popleft() if self._ready else None

    @property
    def has_more(self) -> bool:
        """Whether another frame has come already."""
        return bool(self._ready)

    def answer_pings(self) -> None:
        """Read some of what has come, without waiting; whole frames are kept for :meth:`receive`.

        A reply that is being sent goes first: its client is no longer kept waiting.
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
            data = self.socket.recv(_CHUNK)
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
        """Say so, and read on for a moment: who is still sending would not hear it otherwise."""
        self.close(TOO_BIG, f"a frame holds at most {self._largest} bytes")
        self.wake(socket.SHUT_WR)
        until = time.monotonic() + _LINGER_S
        with suppress(OSError):
            self.socket.settimeout(_LINGER_S)
            while time.monotonic() < until and self.socket.recv(_CHUNK):
                pass

    def send(self, frame: bytes, *, later: bool = False) -> None:
        """Send one frame, or keep it and send it ``later``, with the next.

        A client that has left is noticed by :meth:`receive`. One that reads no more is given up, and whatever
        it has sent meanwhile with it: it is to ask again.
        """
        data = frame_of(frame, masked=False)
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
        """Send a pong or a close frame: at once or not at all, as one thread sees to all connections."""
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
        """Say why, and end the connection."""
        if self._open:
            self._send(code.to_bytes(2, "big") + reason.encode()[:_LONGEST_REASON], CLOSE)
            self._open = False

    def wake(self, how: int = socket.SHUT_RD) -> None:
        """Let :meth:`receive` return at once."""
        with suppress(OSError):  # the client was faster
            self.socket.shutdown(how)

    def hang_up(self) -> None:
        """Close the socket."""
        self.wake(socket.SHUT_RDWR)
        self.socket.close()


class WebSockets:
    """Reads what clients send whose step takes long: pings, and that they leave. Knows all connections."""

    def __init__(self) -> None:
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def present(self) -> int:
        """The number of connections whose clients have not left; this checks each socket."""
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
        """Watch a connection no longer."""
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
        """End every connection that waits for its client; one whose step runs ends after its reply."""
        self._stopped.set()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.stopping = True
            if connection.stepping_since is None:
                connection.close(GOING_AWAY, "the server is stopping")
                connection.wake()
