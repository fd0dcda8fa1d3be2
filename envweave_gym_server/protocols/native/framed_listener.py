"""Accept loop of a Unix socket, which answers the frames of each connection in a thread of its own."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from envweave_gym.net.framed_socket import FramedSocket, accept, listen
from envweave_gym_server.core.errors import is_exhaustion

_PAUSE_S = 0.1
_log = logging.getLogger(__name__)


class FramedListener:
    """Accept loop: calls ``serve`` with each connection of a process of the same user, then closes it."""

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[FramedSocket], None],
        largest: int,
        *,
        is_shared: bool = False,
    ) -> None:
        """``serve`` returns or raises ``OSError`` at the end; ``largest`` limits the bytes of a frame.

        ``is_shared`` says that other processes listen on the same socket too.
        """
        self._listener, self._serve, self._largest = listener, serve, largest
        self._is_shared, self._is_closed = is_shared, False

    def run(self) -> None:
        """Accept connections until :meth:`close`."""
        with self._listener:
            while not self._is_closed:
                try:
                    self._start(accept(self._listener, self._largest))
                except PermissionError as error:
                    _log.warning("connection refused", extra={"error": str(error)})
                except (OSError, RuntimeError) as error:
                    if self._is_closed:
                        return
                    if not is_exhaustion(error):
                        raise
                    time.sleep(_PAUSE_S)  # the others wait in the queue until a file or a thread is free

    def _start(self, peer: FramedSocket) -> None:
        try:
            threading.Thread(target=self._talk, args=(peer,), name="framed peer", daemon=True).start()
        except RuntimeError:
            peer.close()
            raise

    def _talk(self, peer: FramedSocket) -> None:
        try:
            self._serve(peer)
        except OSError as error:
            _log.debug("a peer has left: %s", error)
        finally:
            peer.close()

    def close(self) -> None:
        """Accept no more connections; a shared socket may accept one more, which ``serve`` has to end."""
        self._is_closed = True
        if self._is_shared:  # a shutdown would be one for all processes, and for good
            return
        with suppress(OSError):  # it was closed before
            self._listener.shutdown(socket.SHUT_RDWR)  # which wakes accept()


def listen_when_free(address: str, patience_s: float, is_over: threading.Event) -> socket.socket | None:
    """Listen at an address when the process that had it before releases it; ``None`` after ``patience_s`` seconds."""
    until = time.monotonic() + patience_s
    while not is_over.is_set():
        try:
            return listen(address)
        except OSError:  # it is taken, or this system has no such sockets
            if time.monotonic() > until:
                return None
        is_over.wait(_PAUSE_S)
    return None
