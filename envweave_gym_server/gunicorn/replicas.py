"""Several replicas of one server, each a process, under a parent that restarts them; they end when it does."""

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
from envweave_gym_server.gunicorn.server import GunicornServer

_SHORT_S = 5.0
"""A replica that ends within this time after its start is restarted only after a pause."""
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
"""Pause before the restart of a replica after a short life.

It doubles with each further short life in a row, up to the longest.
"""
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_log = logging.getLogger(__name__)

Announce = Callable[[], None]


class Replicas:
    """Parent process of several servers: runs a Flask application once per socket, until SIGTERM.

    The parent passes SIGTERM on to all replicas, and a second SIGTERM too. A replica that ends without SIGTERM
    is restarted on the same socket. But if no replica of that socket has ever accepted clients, the parent ends
    all replicas, because a restarted one would fail in the same way. All replicas end when the parent is killed.
    """

    def __init__(
        self,
        app: Flask,
        listeners: Sequence[socket.socket],
        announce: Sequence[Announce],
        owner: int | None = None,
    ) -> None:
        """``announce`` has a function for each replica, which prints its URL when it accepts clients.

        ``owner`` is the descriptor of the owner's connection, as for a single server.
        """
        self._app, self._listeners, self._announce, self._owner = app, listeners, announce, owner
        self._indices: dict[int, int] = {}
        """Index of each running replica, by process ID."""
        self._started_at: dict[int, float] = {}
        self._pauses: dict[int, float] = {}
        """Pause before the last start of each replica, by its index."""
        self._has_begun: set[int] = set()
        """Indices of replicas that have accepted clients."""
        self._begins, self._begin_writer = os.pipe()
        os.set_blocking(self._begins, False)
        self._is_ending = False
        self._code = 0
        self._life, self._life_writer = os.pipe()

    def run(self) -> int:
        """Serve until all replicas have ended; return the exit code."""
        for number in _END_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as SIGHUP is under nohup
                signal.signal(number, self._end)
        for index in range(len(self._listeners)):
            self._start(index)
        while self._indices:
            pid, status = os.wait()
            if (index := self._indices.pop(pid, None)) is not None:
                self._has_ended(pid, index, os.waitstatus_to_exitcode(status))
        return self._code

    def _has_ended(self, pid: int, index: int, code: int) -> None:
        if self._is_ending:
            return
        with suppress(BlockingIOError):
            self._has_begun.update(os.read(self._begins, 1 << 16))
        if index not in self._has_begun:
            _log.error("server never began", extra={"why": f"its process ended with {code}", "index": index})
            self._code = code if code > 0 else 1
            self._end()
            return
        why, pause = f"its process had ended with {code}", 0.0
        if time.monotonic() - self._started_at.pop(pid) < _SHORT_S:
            pause = min(2 * self._pauses.get(index, _PAUSE_S / 2), _LONGEST_PAUSE_S)
            why += f" after a short time, so it is started in {pause:g} s"
        _log.warning("server restarted", extra={"why": why, "index": index})
        self._start(index, pause)

    def _end(self, *_: Any) -> None:
        """Send SIGTERM to all replicas."""
        self._is_ending = True
        for pid in self._indices:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _start(self, index: int, pause: float | None = None) -> None:
        """Start a replica; ``pause`` is the wait in seconds before it, ``None`` for the first one at its index.

        Signals are blocked until its process ID is stored, because the handler sends SIGTERM to the stored IDs.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)
        try:
            if self._is_ending:
                return
            pid = os.fork()
            if pid == 0:
                self._run_child(index, pause)
            self._indices[pid], self._started_at[pid] = index, time.monotonic() + (pause or 0.0)
            self._pauses[index] = pause or _PAUSE_S / 2
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _END_SIGNALS)

    def _run_child(self, index: int, pause: float | None) -> None:
        """Run one replica in the process that was forked for it, and exit."""
        code = 1
        try:
            for number in _END_SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _END_SIGNALS)
            os.close(self._life_writer)
            if pause and select.select([self._life], [], [], pause)[0]:
                return  # the parent has ended meanwhile
            own = self._listeners[index]
            for other in self._listeners:
                if other is not own:
                    other.close()
            first = self._announce[index] if pause is None else None
            _Replica(self._app, own, partial(self._begin, index, first), self._owner, life=self._life).run()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0
        except BaseException:  # noqa: BLE001 - nothing may get past the end of this process
            traceback.print_exc()
        finally:
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _begin(self, index: int, announce: Announce | None) -> None:
        """In a replica: report to the parent that clients are accepted, and call ``announce`` if that is given."""
        os.write(self._begin_writer, bytes([index]))
        if announce is not None:
            announce()


class _Replica(GunicornServer):
    """Server that also ends when the parent of all replicas ends."""

    def __init__(
        self, app: Flask, listener: socket.socket, announce: Announce | None, owner: int | None, *, life: int
    ) -> None:
        super().__init__(app, listener, announce, owner)
        self._life, self._arbiter, self._parent = life, os.getpid(), os.getppid()

    def end_without_owner(self, arbiter: Arbiter) -> None:
        """Kill the parent of all replicas and this server once the owner is gone.

        The parent goes first, because it would restart this replica.
        """
        if self._owner is not None and is_gone(self._owner):
            with suppress(ProcessLookupError):
                if os.getppid() == self._parent:
                    os.kill(self._parent, signal.SIGKILL)
        super().end_without_owner(arbiter)

    def _begin(self, worker: Any) -> None:
        super()._begin(worker)
        threading.Thread(target=self._end_with_all, name="parent", daemon=True).start()

    def _end_with_all(self) -> None:
        while os.read(self._life, 4096):
            pass
        if os.getppid() == self._arbiter:  # an orphan's parent is another process, which must live on
            os.kill(self._arbiter, signal.SIGTERM)
