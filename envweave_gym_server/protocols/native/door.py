"""The door of a server without a port: who is on the same machine hands in frames there."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from envweave_gym.net.framed_socket import FramedSocket, accept, listen
from envweave_gym.wire.framing import TOO_LARGE, socket_of_actor

_PATIENCE, _PAUSE = 30.0, 0.1
"""So many seconds the one before may take to leave its door, and pass between two looks."""
_log = logging.getLogger(__name__)


class Doorkeeper:
    """Answers the frames of all who come in, each in a thread of its own."""

    def __init__(self, name: str, answer: Callable[[bytes], Any], leave: Callable[[bytes], None]) -> None:
        """``answer`` gives the reply to a frame behind its line, ``leave`` is told which line has hung up.

        A reply that is not ``bytes`` is too large to be handed out here.
        """
        self._name, self._answer, self._leave = name, answer, leave
        self._is_over = False
        self._listener = self._listening()
        threading.Thread(target=self._let_in, name="door", daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more."""
        self._is_over = True
        if self._listener is not None:
            with suppress(OSError):  # it was closed before
                self._listener.shutdown(socket.SHUT_RDWR)  # which wakes who waits for the next

    def _listening(self) -> socket.socket | None:
        with suppress(OSError):  # the name is taken, or this system has no abstract sockets
            return listen(socket_of_actor(self._name))
        return None

    def _let_in(self) -> None:
        until = time.monotonic() + _PATIENCE
        while self._listener is None and not self._is_over and time.monotonic() < until:
            time.sleep(_PAUSE)
            self._listener = self._listening()
        if self._listener is None:
            return  # then all of them call
        with self._listener as listener:
            while not self._is_over:
                try:
                    guest = accept(listener)
                except PermissionError as error:
                    _log.debug("not let in: %s", error)
                    continue
                except OSError as error:
                    _log.debug("the door is closed: %s", error)
                    return
                threading.Thread(target=self._talk, args=(guest,), name="guest", daemon=True).start()

    def _talk(self, guest: FramedSocket) -> None:
        line = b""
        try:
            while True:
                frame = guest.receive()
                line = frame[: frame[0] + 1]
                reply = self._answer(frame)
                if type(reply) is not bytes:
                    guest.send(TOO_LARGE)
                    line = b""  # it goes on without the door
                    return
                guest.send(reply)
        except OSError as error:
            _log.debug("a guest has left: %s", error)
        finally:
            guest.close()
            if line:
                self._leave(line)
