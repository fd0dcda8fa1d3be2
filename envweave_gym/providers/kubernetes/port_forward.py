"""Port forwarding: relays each connection to a local port to a Pod, in a thread of its own.

The port stays open when the Pod is replaced, so the URL of the server behind it stays the same.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ
from typing import Any, Protocol

from envweave_gym.os_support.process_local import in_forked_child

_BACKLOG = 2048  # connections that wait while a Pod is replaced
_RECEIVE_BYTES = 1 << 18
_STALL_TIMEOUT_S = 60.0
"""Time limit for either side to accept data, or to send the rest of a message."""
_CONNECT_TIMEOUT_S = 10.0
_ACCEPT_RETRY_S = 0.1
_DATA, _ERROR = 0, 1
_log = logging.getLogger(__name__)


class Pipe(Protocol):
    """Interface of a connection to a Pod, over TCP or through the API server."""

    def fileno(self) -> int:
        """Return the file descriptor to poll."""
        ...

    def pending(self) -> bool:
        """Return whether received data waits in a buffer; polling the descriptor does not show it."""
        ...

    def receive(self) -> bytes:
        """Return received data, perhaps none; raise ``EOFError`` at the end of the stream."""
        ...

    def send(self, data: bytes) -> None:
        """Send all of ``data``."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Direct:
    """TCP connection to a Pod's own address, for clients inside the cluster."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(_STALL_TIMEOUT_S)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._socket.fileno()

    def pending(self) -> bool:
        """Return ``False``: plain sockets have no buffer of their own."""
        return False

    def receive(self) -> bytes:
        """Return received data; raise ``EOFError`` at the end of the stream."""
        return _received(self._socket)

    def send(self, data: bytes) -> None:
        """Send all of ``data``."""
        self._socket.sendall(data)

    def close(self) -> None:
        """Close the connection."""
        _hang_up(self._socket)


class Tunnel:
    """Connection to a Pod through the API server: ``v4.channel.k8s.io`` over a WebSocket.

    The first byte of a message is its channel. The first message of each channel contains the port number.
    """

    def __init__(self, websocket: Any) -> None:
        self._websocket, self._begun = websocket, {_DATA: False, _ERROR: False}
        websocket.settimeout(_STALL_TIMEOUT_S)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._websocket.sock.fileno()

    def pending(self) -> bool:
        """Return whether TLS has decrypted data that was not read yet."""
        decrypted = getattr(self._websocket.sock, "pending", None)
        return decrypted is not None and decrypted() > 0

    def receive(self) -> bytes:
        """Return the data of the next message, perhaps none; raise ``EOFError`` at the end of the stream."""
        from websocket import ABNF

        kind, frame = self._websocket.recv_data_frame(True)
        if kind == ABNF.OPCODE_CLOSE:
            raise EOFError
        if kind != ABNF.OPCODE_BINARY or not frame.data:
            return b""
        channel, data = frame.data[0], frame.data[1:]
        if channel not in self._begun:
            raise ConnectionError(f"the cluster sent data on the unknown channel {channel}")
        if not self._begun[channel]:
            self._begun[channel] = True
            return b""
        if channel == _ERROR:
            raise ConnectionError(data.decode(errors="replace"))
        return data

    def send(self, data: bytes) -> None:
        """Send all of ``data`` on the data channel."""
        self._websocket.send_binary(bytes([_DATA]) + data)

    def close(self) -> None:
        """Close the connection."""
        _hang_up(self._websocket.sock)


class PortForward:
    """Listener on a local port that relays each accepted connection to a Pod."""

    def __init__(self, dial: Callable[[], Pipe]) -> None:
        """Reserve a free port of the loopback interface; ``dial`` connects to the current Pod."""
        self._dial = dial
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        # A client may leave between poll and accept(), which would then block for good.
        self._listener.settimeout(_STALL_TIMEOUT_S)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._waker: socket.socket | None = None
        self._thread: threading.Thread | None = None
        in_forked_child(self, PortForward.forget)

    def open(self) -> None:
        """Start to accept connections, those that wait in the backlog first."""
        if self._thread is None:
            self._waker, woken = socket.socketpair()
            self._thread = threading.Thread(
                target=self._work, args=(woken,), name=f"port forward {self.port}", daemon=True
            )
            self._thread.start()

    def pause(self) -> None:
        """Stop accepting and end all connections; the port stays reserved."""
        thread, self._thread = self._thread, None
        if thread is not None and self._waker is not None:
            self._waker.close()
            thread.join(_CONNECT_TIMEOUT_S)
        with self._lock:
            connections = list(self._connections.items())
            for _, local in connections:
                with suppress(OSError):  # it has hung up itself
                    local.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + _CONNECT_TIMEOUT_S
        for thread, _ in connections:
            thread.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Stop accepting, end all connections and release the port."""
        self.pause()
        self._listener.close()

    def forget(self) -> None:
        """Close the inherited listener in a forked child, so that only the owner accepts."""
        self._listener.close()

    def _work(self, woken: socket.socket) -> None:
        with woken, selectors.PollSelector() as waiting:
            waiting.register(self._listener, EVENT_READ)
            waiting.register(woken, EVENT_READ)
            while all(key.fileobj is not woken for key, _ in waiting.select()):
                try:
                    self._accept(self._listener.accept()[0])
                except OSError as error:  # too many files are open, or the client has left
                    _log.warning("a connection to port %d is not taken: %s", self.port, error)
                    time.sleep(_ACCEPT_RETRY_S)

    def _accept(self, local: socket.socket) -> None:
        thread = threading.Thread(
            target=self._carry, args=(local,), name=f"forwarded connection {self.port}", daemon=True
        )
        with self._lock:
            self._connections[thread] = local
        try:
            thread.start()
        except RuntimeError as error:  # the limit of threads is reached; other connections go on
            _log.warning("a connection to port %d is not taken: %s", self.port, error)
            with self._lock:
                del self._connections[thread]
            _hang_up(local)

    def _carry(self, local: socket.socket) -> None:
        try:
            remote = self._dial()
            try:
                carry(local, remote)
            finally:
                remote.close()
        except EOFError:
            pass
        except Exception as error:  # noqa: BLE001 - a WebSocket, TLS or the cluster; the client sees its connection end
            _log.info("a connection to port %d has ended: %s", self.port, error)
        finally:
            with self._lock:
                del self._connections[threading.current_thread()]
            _hang_up(local)


def carry(local: socket.socket, remote: Pipe) -> None:
    """Copy data in both directions until either side closes or stalls.

    One thread copies both directions, because two threads must not use a TLS socket at the same time.
    """
    local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    local.settimeout(_STALL_TIMEOUT_S)
    with selectors.PollSelector() as waiting:
        waiting.register(local, EVENT_READ)
        waiting.register(remote, EVENT_READ)
        while True:
            # TLS may hold decrypted bytes that poll does not report: then poll without waiting.
            ready = {key.fileobj for key, _ in waiting.select(0 if remote.pending() else None)}
            if local in ready:
                remote.send(_received(local))
            if remote in ready or remote.pending():
                local.sendall(remote.receive())


def _received(plain: socket.socket) -> bytes:
    data = plain.recv(_RECEIVE_BYTES)
    if not data:
        raise EOFError
    return data


def _hang_up(plain: socket.socket) -> None:
    """Shut a socket down and close it; the shutdown also ends it in forked processes that hold a copy."""
    with suppress(OSError):  # the other side has done so
        plain.shutdown(socket.SHUT_RDWR)
    plain.close()
