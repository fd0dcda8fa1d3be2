"""A port of this machine's loopback whose connections are carried to a Pod, each by a thread.

The port stays when the Pod is another, so what is behind it keeps its URL.
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

_BACKLOG = 2048
_PIECE = 1 << 18
_STALL = 60.0
"""Seconds that either side may take to accept data, or to send the rest of a message."""
_PATIENCE = 10.0
_BREATH = 0.1
_DATA, _ERROR = 0, 1
_log = logging.getLogger(__name__)


class Pipe(Protocol):
    """A connection to a Pod."""

    def fileno(self) -> int:
        """The file."""
        ...

    def pending(self) -> bool:
        """Whether there is something to receive that the file does not show."""
        ...

    def receive(self) -> bytes:
        """Return the data received, perhaps empty; raises ``EOFError`` at the end."""
        ...

    def send(self, data: bytes) -> None:
        """Send it."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class Direct:
    """A connection to where the Pod is."""

    def __init__(self, place: tuple[str, int]) -> None:
        self._socket = socket.create_connection(place, timeout=_PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(_STALL)

    def fileno(self) -> int:
        """The file."""
        return self._socket.fileno()

    def pending(self) -> bool:
        """There is nothing that the file does not show."""
        return False

    def receive(self) -> bytes:
        """Return the data received."""
        return _received(self._socket)

    def send(self, data: bytes) -> None:
        """Send it."""
        self._socket.sendall(data)

    def close(self) -> None:
        """Hang up."""
        _hang_up(self._socket)


class Tunnel:
    """A connection through the API server: ``v4.channel.k8s.io`` over a WebSocket of the client library.

    The first byte of a message is its channel, and the first message of each channel the number of the port.
    """

    def __init__(self, websocket: Any) -> None:
        self._websocket, self._begun = websocket, {_DATA: False, _ERROR: False}
        websocket.settimeout(_STALL)

    def fileno(self) -> int:
        """The file."""
        return self._websocket.sock.fileno()

    def pending(self) -> bool:
        """Whether TLS has deciphered more than was asked for."""
        decrypted = getattr(self._websocket.sock, "pending", None)
        return decrypted is not None and decrypted() > 0

    def receive(self) -> bytes:
        """The data of the next message."""
        from websocket import ABNF

        kind, frame = self._websocket.recv_data_frame(True)
        if kind == ABNF.OPCODE_CLOSE:
            raise EOFError
        if kind != ABNF.OPCODE_BINARY or not frame.data:
            return b""
        channel, data = frame.data[0], frame.data[1:]
        if channel not in self._begun:
            raise ConnectionError(f"the cluster speaks on channel {channel}, of which nothing is known")
        if not self._begun[channel]:
            self._begun[channel] = True
            return b""
        if channel == _ERROR:
            raise ConnectionError(data.decode(errors="replace"))
        return data

    def send(self, data: bytes) -> None:
        """Send it on its channel."""
        self._websocket.send_binary(bytes([_DATA]) + data)

    def close(self) -> None:
        """Hang up."""
        _hang_up(self._websocket.sock)


class Door:
    """The port, and who has come through it."""

    def __init__(self, dial: Callable[[], Pipe]) -> None:
        """``dial`` connects to the Pod that there is now."""
        self._dial = dial
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._listener.settimeout(_STALL)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._inside: dict[threading.Thread, socket.socket] = {}
        self._waker: socket.socket | None = None
        self._porter: threading.Thread | None = None
        in_forked_child(self, Door.forget)

    def open(self) -> None:
        """Accept connections from now on, and those that wait in the backlog."""
        if self._porter is None:
            self._waker, woken = socket.socketpair()
            self._porter = threading.Thread(
                target=self._work, args=(woken,), name=f"port forward {self.port}", daemon=True
            )
            self._porter.start()

    def shut(self) -> None:
        """Let nobody in, and those who are in go; the port stays ours."""
        porter, self._porter = self._porter, None
        if porter is not None and self._waker is not None:
            self._waker.close()
            porter.join(_PATIENCE)
        with self._lock:
            inside = list(self._inside.items())
            for _, local in inside:
                with suppress(OSError):  # it has hung up itself
                    local.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + _PATIENCE
        for thread, _ in inside:
            thread.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Shut it for good."""
        self.shut()
        self._listener.close()

    def forget(self) -> None:
        """In a process forked from the owner: let go of the port."""
        self._listener.close()

    def _work(self, woken: socket.socket) -> None:
        with woken, selectors.PollSelector() as waiting:
            waiting.register(self._listener, EVENT_READ)
            waiting.register(woken, EVENT_READ)
            while all(key.fileobj is not woken for key, _ in waiting.select()):
                try:
                    self._let_in(self._listener.accept()[0])
                except OSError as error:  # too many files are open, or whoever came has left
                    _log.warning("a connection to port %d is not taken: %s", self.port, error)
                    time.sleep(_BREATH)

    def _let_in(self, local: socket.socket) -> None:
        thread = threading.Thread(
            target=self._carry, args=(local,), name=f"forwarded connection {self.port}", daemon=True
        )
        with self._lock:
            self._inside[thread] = local
        try:
            thread.start()
        except RuntimeError as error:  # there are too many; those inside are carried on
            _log.warning("a connection to port %d is not taken: %s", self.port, error)
            with self._lock:
                del self._inside[thread]
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
                del self._inside[threading.current_thread()]
            _hang_up(local)


def carry(local: socket.socket, remote: Pipe) -> None:
    """Carry what comes on either side to the other, until one hangs up or stalls.

    One thread does both, as TLS bears no two.
    """
    local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    local.settimeout(_STALL)
    with selectors.PollSelector() as waiting:
        waiting.register(local, EVENT_READ)
        waiting.register(remote, EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in waiting.select(0 if remote.pending() else None)}
            if local in ready:
                remote.send(_received(local))
            if remote in ready or remote.pending():
                local.sendall(remote.receive())


def _received(plain: socket.socket) -> bytes:
    data = plain.recv(_PIECE)
    if not data:
        raise EOFError
    return data


def _hang_up(plain: socket.socket) -> None:
    """End a connection for whoever has a handle of it, also in a process that was forked."""
    with suppress(OSError):  # the other side has done so
        plain.shutdown(socket.SHUT_RDWR)
    plain.close()
