"""Drain of the worker at SIGTERM: running calls are finished, all others are refused."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable

from envweave_gym_server.sessions.service import SessionService

_PARENT_CHECK_S = 1.0
_SAME_SIGNAL_S = 0.5
"""Signals within this time count as one: a process group gets each from the system and from its parent."""
_log = logging.getLogger(__name__)


class Drain:
    """Thread of the worker that waits for SIGTERM, or for the death of the parent.

    Signal handlers may interrupt the main thread anywhere, so ours only write a byte to the pipe that this
    thread reads. At the first byte the drain begins; at the second one, or after ``settings.drain`` seconds,
    the process ends at once.
    """

    def __init__(self, service: SessionService, stop: Callable[[], None]) -> None:
        """``stop`` ends the worker once all calls are over."""
        self._service, self._stop = service, stop
        self._parent = os.getppid()
        self._stopping = threading.Event()
        self._signals, self._signal = os.pipe()
        os.set_blocking(self._signal, False)
        os.set_blocking(self._signals, False)

    def start(self) -> None:
        """Install the signal handlers, in the main thread; start both threads before requests use up all threads."""
        for number in (signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, lambda *_: os.write(self._signal, b"\0"))
            signal.siginterrupt(number, False)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the parent gets Ctrl-C too, and sends SIGTERM
        for work in (self._limit, self._drain):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    def _limit(self) -> None:
        while not self._wait(_PARENT_CHECK_S) and os.getppid() == self._parent:
            pass
        _log.info("server stopping", extra={"under_way": self._service.sessions.under_way})
        self._stopping.set()
        time.sleep(_SAME_SIGNAL_S)
        while self._wait(0.0):
            os.read(self._signals, 64)
        self._wait(self._service.settings.drain - _SAME_SIGNAL_S)
        _log.warning("server ended", extra={"under_way": self._service.sessions.under_way})
        os._exit(1)

    def _wait(self, seconds: float) -> bool:
        """Return whether a signal has come within ``seconds``."""
        return bool(select.select([self._signals], [], [], max(seconds, 0.0))[0])

    def _drain(self) -> None:
        self._stopping.wait()
        self._service.stop()
        self._stop()
