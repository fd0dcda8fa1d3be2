"""Servers that are the same, each in a process of its own, and the parent that ends with all of them."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from flask import Flask

from envweave_gym_server.serve import Server

_SHORT = 5.0
"""Who ends after fewer seconds may not have begun."""
_PAUSE = 1.0
"""So many seconds pass before one is started again that has ended after so short a time."""
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_log = logging.getLogger(__name__)

Announce = Callable[[], None]


class Replicas:
    """Runs a Flask application once for each of several sockets, until SIGTERM.

    SIGTERM goes on to all of them, and a second one too. One that ends without it is started again, unless it
    never was up for long: then all end, as others in its place would fare no better. When the parent is
    killed all of them end as if they were told.
    """

    def __init__(self, app: Flask, listeners: Sequence[socket.socket], announce: Sequence[Announce]) -> None:
        """``announce`` are called once clients of each are answered."""
        self._app, self._listeners, self._announce = app, listeners, announce
        self._places: dict[int, int] = {}
        self._since: dict[int, float] = {}
        self._proven: set[int] = set()
        """The places of those that were up for long once."""
        self._is_ending = False
        self._code = 0
        self._life, self._held = os.pipe()

    def run(self) -> int:
        """Serve until all have ended; the exit code."""
        for number in _ENDS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as SIGHUP is under nohup
                signal.signal(number, self._end)
        for place in range(len(self._listeners)):
            self._start(place, self._announce[place])
        while self._places:
            pid, status = os.wait()
            if (place := self._places.pop(pid, None)) is not None:
                self._ended(pid, place, os.waitstatus_to_exitcode(status))
        return self._code

    def _ended(self, pid: int, place: int, code: int) -> None:
        if self._is_ending:
            return
        if was_short := time.monotonic() - self._since.pop(pid) < _SHORT:
            if place not in self._proven:
                self._code = code if code > 0 else 1
                self._end()
                return
            time.sleep(_PAUSE)
        self._proven.add(place)
        why = f"its process had ended with {code}{' after a short time' if was_short else ''}"
        _log.warning("server restarted", extra={"why": why, "place": place})
        self._start(place, None)

    def _end(self, *_: Any) -> None:
        """Tell all of them to end."""
        self._is_ending = True
        for pid in self._places:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _start(self, place: int, announce: Announce | None) -> None:
        """Start one, which no signal may miss meanwhile."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
        try:
            if self._is_ending:
                return
            pid = os.fork()
            if pid == 0:
                self._be(place, announce)
            self._places[pid], self._since[pid] = place, time.monotonic()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)

    def _be(self, place: int, announce: Announce | None) -> None:
        """Be one of them, in the process that was forked for it, to its end."""
        code = 1
        try:
            for number in _ENDS:
                if signal.getsignal(number) != signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
            os.close(self._held)
            own = self._listeners[place]
            for other in self._listeners:
                if other is not own:
                    other.close()
            _OneOfMany(self._app, own, announce, self._life).run()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0
        except BaseException:  # noqa: BLE001 - nothing may get past the end of this process
            traceback.print_exc()
        finally:
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


class _OneOfMany(Server):
    """A server that ends with the parent of its parent."""

    def __init__(self, app: Flask, listener: socket.socket, announce: Announce | None, life: int) -> None:
        super().__init__(app, listener, announce)
        self._life, self._arbiter = life, os.getpid()

    def _let_it_drain(self, worker: Any) -> None:
        super()._let_it_drain(worker)
        threading.Thread(target=self._end_with_all, name="parent", daemon=True).start()

    def _end_with_all(self) -> None:
        while os.read(self._life, 4096):
            pass
        if os.getppid() == self._arbiter:  # who takes in orphans, the arbiter's too, is none of ours
            os.kill(self._arbiter, signal.SIGTERM)
