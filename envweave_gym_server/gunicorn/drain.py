"""How a server ends: calls under way are finished, all others refused, and nothing is left behind."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable

from envweave_gym_server.sessions.service import SessionService

_LOOK_EVERY = 1.0
_SAME_SIGNAL = 0.5
"""Signals within so many seconds are one: a process group gets each from the system and from its parent."""
_log = logging.getLogger(__name__)


class Guard:
    """A thread of the worker that waits for SIGTERM, and for the death of the parent.

    Signal handlers may interrupt the main thread anywhere, so ours only write a byte to the pipe that this
    thread reads. From the first byte on the server drains; at the second, or when ``settings.drain`` seconds
    are over, the process ends as it is.
    """

    def __init__(self, state: SessionService, stop: Callable[[], None]) -> None:
        """``stop`` ends the worker once all calls are over."""
        self._state, self._stop = state, stop
        self._parent = os.getppid()
        self._stopping = threading.Event()
        self._heard, self._tell = os.pipe()
        os.set_blocking(self._tell, False)
        os.set_blocking(self._heard, False)

    def watch(self) -> None:
        """Begin, in the main thread."""
        for number in (signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, lambda *_: os.write(self._tell, b"\0"))
            signal.siginterrupt(number, False)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the parent hears Ctrl-C too, and tells
        for work in (self._guard, self._drain):  # now: later there may be no thread to be had
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    def _guard(self) -> None:
        while not self._wait(_LOOK_EVERY) and os.getppid() == self._parent:
            pass
        _log.info("server stopping", extra={"under_way": self._state.sessions.under_way})
        self._stopping.set()
        time.sleep(_SAME_SIGNAL)
        self._forget()
        self._wait(self._state.settings.drain - _SAME_SIGNAL)
        _log.warning("server ended", extra={"under_way": self._state.sessions.under_way})
        os._exit(1)

    def _wait(self, seconds: float) -> bool:
        return bool(select.select([self._heard], [], [], max(seconds, 0.0))[0])

    def _forget(self) -> None:
        while self._wait(0.0):
            os.read(self._heard, 64)

    def _drain(self) -> None:
        self._stopping.wait()
        self._state.stop()
        self._stop()
