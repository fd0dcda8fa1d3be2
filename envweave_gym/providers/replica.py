"""Base class of replicas: servers that their owner process starts when needed, restarts and stops."""

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
from envweave_gym.remote.started_servers import Upkeep, keep_up

AT_REST: Final = "there is none"
"""Value of :meth:`Replica._ended`: the replica was stopped and has not been needed since."""
NO_SERVER: Final = "its image has to run 'envweave serve', as those of docs/containers.md do"
"""Advice for a replica that ends before it has ever served."""
STOPPED: Final = "it was stopped meanwhile"
_RETRY_AFTER_S = 1.0
"""Least seconds between a failed start and the next attempt."""
# A health check costs little; asking the engine or cluster for the state costs more.
_HEALTH_EVERY_S, _STATE_EVERY_S = 0.01, 0.1
_LOG_TAIL_CHARS = 2000
_log = logging.getLogger(__name__)


class Replica(ABC):
    """One server in a process, container, Pod or Ray actor, behind a URL that survives restarts.

    It belongs to the process that created it; its methods do nothing in forked children.
    """

    check_every: float = 1.0
    """Default number of seconds between two health checks."""
    url: str
    token: str
    """Access token that its clients send."""
    upkeep: Upkeep
    """Callbacks by which clients in this process have it started again."""
    starts: int
    """Number of starts so far."""
    program: str = "envweave serve"
    """The program that is to serve, for the error if it does not."""
    advice: str = NO_SERVER
    """Advice for a replica that ends before it has ever served."""

    def __init__(self, what: str, token: str | None = None) -> None:
        """Initialise the state; a subclass then calls :meth:`_begin`.

        ``what`` names the replica in error messages; ``token`` is by default a random one.
        """
        self.what, self.token = what, token or secrets.token_urlsafe(32)
        # Reentrant: garbage collection in the block may close the last environment that uses it.
        self._owner, self._lock = Owner(), threading.RLock()
        self.starts, self._is_over = 0, False
        self._failed, self._not_before = "", 0.0
        self.upkeep = Upkeep(self.ensure, shortcut=self.direct_address)

    # Implemented by each kind of replica

    @abstractmethod
    def _make(self) -> None:
        """Start a server.

        Record each created object at once, so that :meth:`_remove` can clean up after a failed start.
        """

    @abstractmethod
    def _ended(self) -> str | None:
        """Return why the server has ended.

        ``None`` if it runs or its state is unknown, :data:`AT_REST` if none was started since it was stopped.
        """

    @abstractmethod
    def _remove(self) -> None:
        """Remove the server, which may have ended; keep the reference to it until it is gone."""

    def _end(self) -> None:
        """Stop the server gracefully, so that calls under way finish, and remove it."""
        self._remove()

    def _close(self) -> None:  # noqa: B027 - not every kind has such a thing
        """Release what all its servers share, such as a port."""

    def direct_address(self) -> tuple[str, int] | None:
        """Return a faster address than the URL's, as host and port, or ``None``."""
        return None

    def answers(self, timeout: float) -> bool:
        """Return whether it answers within ``timeout`` seconds, without asking its engine or cluster."""
        return answers(self.url, timeout)

    @abstractmethod
    def logs(self) -> str:
        """Return the output of the server."""

    # The same for all

    def _begin(self, *, now: bool = True) -> None:
        """Start the server, with ``now=False`` when it is first needed, and stop it when this process ends.

        From now on clients in this process find its token and callbacks by its URL.
        """
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
        """Start a server behind the same URL unless one runs; the sessions of the previous one are lost.

        Raise ``NotAvailable`` if it cannot be started.
        """
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
        """Start another server; repeat the last error for a second after a failed start instead of trying again."""
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
        """Start a server; if that fails, remove what was created."""
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
        """Wait until the health check of a started server succeeds; raise ``NotAvailable`` after ``seconds``."""
        deadline = time.monotonic() + seconds
        looked_at = time.monotonic()
        while not is_healthy(url):
            now = time.monotonic()
            if now - looked_at > _STATE_EVERY_S:
                looked_at = now
                if (why := STOPPED if self._is_over else self._ended()) is not None:
                    raise NotAvailable(f"{self.what} ended before its server answered: {why}")
            if now > deadline:
                late = f"{self.what} did not serve within {seconds:g} s; is {self.program!r} what it runs?"
                raise NotAvailable(f"{late} It last said: {last_words(self.logs())}")
            time.sleep(_HEALTH_EVERY_S)

    def rest(self) -> None:
        """Stop the server and remove it; :meth:`ensure` starts another."""
        if self._owner.is_here():
            with self._lock:
                self._end()

    def stop(self) -> None:
        """Stop and remove the server for good, even while it is being started."""
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
"""Function that starts a replica; it takes ``token=``, and ``ids=``, the environments to serve."""


def last_words(log: str) -> str:
    """Return the end of a log in one line."""
    return (
        " | ".join(line.strip() for line in log[-_LOG_TAIL_CHARS:].splitlines() if line.strip()) or "(no log)"
    )


def with_code(code: int, log: str, advice: str = "") -> str:
    """Return a phrase with an exit code, the end of the log, and advice if there is any."""
    said = f", and it last said: {last_words(log)}" if log.strip() else ""
    return f"exit code {code}{said}{advice and '; '}{advice}"


def is_healthy(url: str, timeout: float = 1.0) -> bool:
    """Return whether the server at ``url`` takes calls, by its health check."""
    return bool(_health(url, timeout))


def answers(url: str, timeout: float) -> bool:
    """Return whether a server answers at all; one that is full or shutting down does too."""
    return _health(url, timeout) is not None


def _health(url: str, timeout: float) -> bool | None:
    try:
        return Address(url).connector().is_healthy(time.monotonic() + timeout)
    except (OSError, NotAvailable):
        return None
