"""Servers that are the same, each in a process of its own, and the parent that ends with all of them."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from flask import Flask
from gunicorn.arbiter import Arbiter

from envweave_gym_server.core.owner_pipe import is_gone
from envweave_gym_server.gunicorn.serve import Server

_SHORT = 5.0
"""Who ends after fewer seconds is not started again at once."""
_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
"""So many seconds pass before one is started again that has ended after so short a time, and twice as many
each time that it does so again."""
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_log = logging.getLogger(__name__)

Announce = Callable[[], None]


class Replicas:
    """Runs a Flask application once for each of several sockets, until SIGTERM.

    SIGTERM goes on to all of them, and a second one too. One that ends without it is started again, the later
    the more often it has ended soon; unless none in its place has ever come to answer clients: then all end,
    as others would fare no better. When the parent is killed all of them end as if they were told.
    """

    def __init__(
        self,
        app: Flask,
        listeners: Sequence[socket.socket],
        announce: Sequence[Announce],
        owner: int | None = None,
    ) -> None:
        """``announce`` are called once clients of each are answered; ``owner`` is as for :class:`Server`."""
        self._app, self._listeners, self._announce, self._owner = app, listeners, announce, owner
        self._places: dict[int, int] = {}
        self._since: dict[int, float] = {}
        self._pauses: dict[int, float] = {}
        """By place how long was waited before the last start there."""
        self._begun: set[int] = set()
        """The places of those that have come to answer clients."""
        self._begins, self._says_so = os.pipe()
        os.set_blocking(self._begins, False)
        self._is_ending = False
        self._code = 0
        self._life, self._held = os.pipe()

    def run(self) -> int:
        """Serve until all have ended; the exit code."""
        for number in _ENDS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as SIGHUP is under nohup
                signal.signal(number, self._end)
        for place in range(len(self._listeners)):
            self._start(place)
        while self._places:
            pid, status = os.wait()
            if (place := self._places.pop(pid, None)) is not None:
                self._ended(pid, place, os.waitstatus_to_exitcode(status))
        return self._code

    def _ended(self, pid: int, place: int, code: int) -> None:
        if self._is_ending:
            return
        with suppress(BlockingIOError):
            self._begun.update(os.read(self._begins, 1 << 16))
        if place not in self._begun:
            _log.error("server never began", extra={"why": f"its process ended with {code}", "place": place})
            self._code = code if code > 0 else 1
            self._end()
            return
        why, pause = f"its process had ended with {code}", 0.0
        if time.monotonic() - self._since.pop(pid) < _SHORT:
            pause = min(2 * self._pauses.get(place, _PAUSE / 2), _LONGEST_PAUSE)
            why += f" after a short time, so it is started in {pause:g} s"
        _log.warning("server restarted", extra={"why": why, "place": place})
        self._start(place, pause)

    def _end(self, *_: Any) -> None:
        """Tell all of them to end."""
        self._is_ending = True
        for pid in self._places:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _start(self, place: int, pause: float | None = None) -> None:
        """Start one, after a pause where it is not the first; no signal may miss it meanwhile."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
        try:
            if self._is_ending:
                return
            pid = os.fork()
            if pid == 0:
                self._be(place, pause)
            self._places[pid], self._since[pid] = place, time.monotonic() + (pause or 0.0)
            self._pauses[place] = pause or _PAUSE / 2
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)

    def _be(self, place: int, pause: float | None) -> None:
        """Be one of them, in the process that was forked for it, to its end."""
        code = 1
        try:
            for number in _ENDS:
                if signal.getsignal(number) != signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
            os.close(self._held)
            if pause and select.select([self._life], [], [], pause)[0]:
                return  # the parent has ended meanwhile
            own = self._listeners[place]
            for other in self._listeners:
                if other is not own:
                    other.close()
            first = self._announce[place] if pause is None else None
            begin = partial(self._begin, place, first)
            _OneOfMany(self._app, own, begin, self._owner, life=self._life).run()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0
        except BaseException:  # noqa: BLE001 - nothing may get past the end of this process
            traceback.print_exc()
        finally:
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _begin(self, place: int, announce: Announce | None) -> None:
        """In the process that answers clients from now on: tell the parent, and perhaps the user."""
        os.write(self._says_so, bytes([place]))
        if announce is not None:
            announce()


class _OneOfMany(Server):
    """A server that ends with the parent of its parent."""

    def __init__(
        self, app: Flask, listener: socket.socket, announce: Announce | None, owner: int | None, *, life: int
    ) -> None:
        super().__init__(app, listener, announce, owner)
        self._life, self._arbiter, self._parent = life, os.getpid(), os.getppid()

    def end_without_owner(self, arbiter: Arbiter) -> None:
        """As of a single server; the parent, which would start this one again, is killed first."""
        if self._owner is not None and is_gone(self._owner):
            with suppress(ProcessLookupError):
                if os.getppid() == self._parent:
                    os.kill(self._parent, signal.SIGKILL)
        super().end_without_owner(arbiter)

    def _let_it_drain(self, worker: Any) -> None:
        super()._let_it_drain(worker)
        threading.Thread(target=self._end_with_all, name="parent", daemon=True).start()

    def _end_with_all(self) -> None:
        while os.read(self._life, 4096):
            pass
        if os.getppid() == self._arbiter:  # who takes in orphans, the arbiter's too, is none of ours
            os.kill(self._arbiter, signal.SIGTERM)
