"""The base class of replicas: a server that its owner process starts when needed, restarts and stops."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.os_support.process_local import Owner
from envweave_gym.providers.parallel import stop_at_exit
from envweave_gym.remote.address import Address, remember_token
from envweave_gym.remote.upkeep import Upkeep, keep_up

AT_REST: Final = "there is none"
"""The reason for the end of a replica that was put to rest and has not been needed since."""
NO_SERVER: Final = "its image has to run 'envweave serve', as those of docs/containers.md do"
"""The advice for a replica that ends before it has ever served."""
STOPPED: Final = "it was stopped meanwhile"
_RETRY_AFTER_S = 1.0
"""The least time between a start that failed and the next."""
_HEALTH_EVERY_S, _STATE_EVERY_S = 0.01, 0.1
_LOG_TAIL = 2000
_log = logging.getLogger(__name__)


class Replica(ABC):
    """One server, in whatever process, container or Pod; clients know it by its URL, which never changes.

    It belongs to the process that has created it; processes forked from that leave it alone.
    """

    check_every: float = 1.0
    """The default of seconds between two health checks."""
    url: str
    token: str
    """The token that its clients send."""
    upkeep: Upkeep
    """The functions by which clients of this process start it again."""
    starts: int
    """How often it has been started."""

    def __init__(self, what: str, token: str | None = None) -> None:
        """``what`` names it in errors; ``token`` is by default a random one."""
        self.what, self.token = what, token or secrets.token_urlsafe(32)
        # Reentrant: garbage collection in the block may close the last environment that uses it.
        self._owner, self._lock = Owner(), threading.RLock()
        self.starts, self._is_over = 0, False
        self._failed, self._not_before = "", 0.0
        self.upkeep = Upkeep(self.ensure, shortcut=self.place)

    # Implemented by each kind of replica

    @abstractmethod
    def _make(self) -> None:
        """Start a server. What is created is recorded at once, so that a failed start can be removed."""

    @abstractmethod
    def _ended(self) -> str | None:
        """Why it has ended; ``None`` while it runs or cannot be asked, ``AT_REST`` if there is none."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the server, which may have ended; forget it only when it is gone."""

    def _end(self) -> None:
        """End the server gracefully: calls that are under way finish."""
        self._remove()

    def _close(self) -> None:  # noqa: B027 - not every kind has such a thing
        """Release what outlives each server, like a port."""

    def place(self) -> tuple[str, int] | None:
        """A faster address than that of its URL, if there is one."""
        return None

    def answers(self, timeout: float) -> bool:
        """Whether it answers at all, which is cheaper than asking its engine or cluster."""
        return answers(self.url, timeout)

    @abstractmethod
    def logs(self) -> str:
        """The text that it has written."""

    # The same for all

    def _begin(self, *, now: bool = True) -> None:
        """Let clients find it by its URL, stop it with this process, and start it now or when needed."""
        try:
            stop_at_exit(self)
            if now:
                with self._lock:
                    self._start()
        except BaseException:
            self.stop()
            raise
        remember_token(self.url, self.token)
        keep_up(self.url, self.upkeep)

    def ensure(self) -> None:
        """Start it behind the same URL unless it runs; the sessions of the server before are lost."""
        if not self._owner.is_here():
            return
        with self._lock:
            if self._is_over or (why := self._ended()) is None:
                return
            if why is not AT_REST:
                _log.warning("%s is started again: %s", self.what, why)
                self.upkeep.has_ended(why)
                self._remove()
            self._start_again()

    def _start_again(self) -> None:
        """Start another server; a start that has just failed is not tried again at once."""
        if time.monotonic() < self._not_before:
            raise NotAvailable(self._failed)
        try:
            self._start()
        except (InvalidArgument, NotAvailable) as error:  # a mounted folder may be gone by now
            again = f"{self.what} cannot be started again: "
            self._failed = f"{'' if isinstance(error, NotAvailable) else again}{error}"
            self._not_before = time.monotonic() + _RETRY_AFTER_S
            raise NotAvailable(self._failed) from None

    def _start(self) -> None:
        """Start a server, and remove it if that fails."""
        try:
            self._make()
            if self._is_over:
                raise NotAvailable(f"{self.what} cannot be started: {STOPPED}")
        except BaseException:
            try:
                self._remove()
            except NotAvailable as error:  # the error of the start is raised
                _log.warning("%s", error)
            raise
        self.starts += 1

    def _wait_until_healthy(self, url: str, seconds: float) -> None:
        """Wait until the health check of a started server succeeds."""
        deadline = time.monotonic() + seconds
        looked_at = time.monotonic()
        while not is_healthy(url):
            now = time.monotonic()
            if now - looked_at > _STATE_EVERY_S:
                looked_at = now
                if (why := self._why_over()) is not None:
                    raise NotAvailable(f"{self.what} ended before its server answered: {why}")
            if now > deadline:
                late = f"{self.what} did not serve within {seconds:g} s; is 'envweave serve' what it runs?"
                raise NotAvailable(f"{late} It last said: {last_words(self.logs())}")
            time.sleep(_HEALTH_EVERY_S)

    def _why_over(self) -> str | None:
        """Why a wait for it is over; ``None`` while it may still serve."""
        return STOPPED if self._is_over else self._ended()

    def rest(self) -> None:
        """End the server and remove it; ``ensure`` starts another."""
        if self._owner.is_here():
            with self._lock:
                self._end()

    def stop(self) -> None:
        """End it for good and remove it, also while it is being started."""
        if not self._owner.is_here():
            return
        self._is_over = True
        keep_up(self.url, None)
        try:
            self.rest()
        finally:
            self._close()
            stop_at_exit(self, False)


Start = Callable[..., Replica]
"""Starts a replica; takes ``token=``, and ``ids=`` to serve."""


def last_words(log: str) -> str:
    """The end of a log in one line."""
    return " | ".join(line.strip() for line in log[-_LOG_TAIL:].splitlines() if line.strip()) or "(no log)"


def with_code(code: int, log: str, advice: str = "") -> str:
    """A phrase with an exit code, the end of the log, and advice if there is any."""
    said = f", and it last said: {last_words(log)}" if log.strip() else ""
    return f"exit code {code}{said}{advice and '; '}{advice}"


def is_healthy(url: str, timeout: float = 1.0) -> bool:
    """Return whether a server takes calls."""
    return bool(_health(url, timeout))


def answers(url: str, timeout: float) -> bool:
    """Return whether a server answers at all: one that is full, or is stopping, does too."""
    return _health(url, timeout) is not None


def _health(url: str, timeout: float) -> bool | None:
    try:
        return Address(url).connector().is_healthy(time.monotonic() + timeout)
    except (OSError, NotAvailable):
        return None
