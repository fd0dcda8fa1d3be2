"""What every provider gives: one server, which its process keeps up."""

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
from envweave_gym.providers.health import answers, is_healthy
from envweave_gym.providers.together import stop_at_exit
from envweave_gym.remote.address import remember_token
from envweave_gym.remote.upkeep import Upkeep, keep_up

AT_REST: Final = "there is none"
"""Why one has ended that nobody has asked for since it was put to rest."""
NO_SERVER: Final = "its image has to run 'envweave serve', as those of docs/containers.md do"
"""What to see to where one ends that has never served."""
STOPPED: Final = "it was stopped meanwhile"
_PAUSE = 1.0
"""So many seconds pass between a start that failed and the next."""
_LOOK, _ASK_EVERY = 0.01, 0.1
_LAST_WORDS = 2000
_log = logging.getLogger(__name__)


class Replica(ABC):
    """One server process, wherever it runs; clients know it by its URL.

    It belongs to the process that has made it, and is left alone by those that were forked from that.
    """

    check_every: float = 1.0
    """So many seconds pass between two looks at how it is, where nobody says otherwise."""
    url: str
    token: str
    """What it asks for."""
    upkeep: Upkeep
    """How those who use it keep it up."""
    starts: int
    """How often it has been started."""

    def __init__(self, what: str, token: str | None = None) -> None:
        """``what`` names it in errors, and ``token`` is what it asks for: by default one that is made up."""
        self.what, self.token = what, token or secrets.token_urlsafe(32)
        # the same thread may come again: collecting garbage closes environments, which may be the last ones
        self._owner, self._lock = Owner(), threading.RLock()
        self.starts, self._is_over = 0, False
        self._failed, self._not_before = "", 0.0
        self.upkeep = Upkeep(self.ensure, shortcut=self.place)

    # What a provider says of its servers

    @abstractmethod
    def _make(self) -> None:
        """Start one. What is made is taken down even where this fails, so that it can be removed."""

    @abstractmethod
    def _ended(self) -> str | None:
        """Why it runs no more; ``None`` while it does, or nobody can say, ``AT_REST`` where there is none."""

    @abstractmethod
    def _remove(self) -> None:
        """Leave nothing of what was made, which may have ended; it is known until it is gone."""

    def _end(self) -> None:
        """End what runs, with its steps that are under way."""
        self._remove()

    def _close(self) -> None:  # noqa: B027 - not every kind has such a thing
        """Leave nothing of what is there in each of its lives, like its port."""

    def place(self) -> tuple[str, int] | None:
        """A shorter way to it than its URL, where there is one."""
        return None

    def answers(self, timeout: float) -> bool:
        """Whether it answers at all, which costs less than to ask where it runs."""
        return answers(self.url, timeout)

    @abstractmethod
    def logs(self) -> str:
        """What it has written."""

    # What is the same for all

    def _begin(self, *, now: bool = True) -> None:
        """Have it found by all who know its URL, and end with this process; start it now, or when needed."""
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
        """Start it unless it runs, behind the same URL; what its processes knew is lost then."""
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
        """Start another, not more often than once in a while where it fails each time."""
        if time.monotonic() < self._not_before:
            raise NotAvailable(self._failed)
        try:
            self._start()
        except (InvalidArgument, NotAvailable) as error:  # of what it was given a folder may be gone
            again = f"{self.what} cannot be started again: "
            self._failed = f"{'' if isinstance(error, NotAvailable) else again}{error}"
            self._not_before = time.monotonic() + _PAUSE
            raise NotAvailable(self._failed) from None

    def _start(self) -> None:
        """Start one; one that does not start as it should is removed."""
        try:
            self._make()
            if self._is_over:
                raise NotAvailable(f"{self.what} cannot be started: {STOPPED}")
        except BaseException:
            try:
                self._remove()
            except NotAvailable as error:  # what is raised is why it did not start
                _log.warning("%s", error)
            raise
        self.starts += 1

    def _wait_until_healthy(self, url: str, seconds: float) -> None:
        """Wait for the health check of a server that has just been started."""
        deadline = time.monotonic() + seconds
        asked = time.monotonic()
        while not is_healthy(url):
            now = time.monotonic()
            if now - asked > _ASK_EVERY:
                asked = now
                if (why := self._why_over()) is not None:
                    raise NotAvailable(f"{self.what} ended before its server answered: {why}")
            if now > deadline:
                late = f"{self.what} did not serve within {seconds:g} s; is 'envweave serve' what it runs?"
                raise NotAvailable(f"{late} It last said: {last_words(self.logs())}")
            time.sleep(_LOOK)

    def _why_over(self) -> str | None:
        """Why it is of no use any more, to whoever waits for it."""
        return STOPPED if self._is_over else self._ended()

    def rest(self) -> None:
        """End it, and leave nothing behind, until somebody asks for it again."""
        if self._owner.is_here():
            with self._lock:
                self._end()

    def stop(self) -> None:
        """End it for good, and leave nothing behind; one that is just being started too."""
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
"""Starts a replica; the token it is to ask for may be given as ``token=``."""


def last_words(log: str) -> str:
    """The end of a log, in one line."""
    return " | ".join(line.strip() for line in log[-_LAST_WORDS:].splitlines() if line.strip()) or "(no log)"


def with_code(code: int, log: str, advice: str = "") -> str:
    """How a process has ended, what it has written last, if anything, and perhaps what to do."""
    said = f", and it last said: {last_words(log)}" if log.strip() else ""
    return f"exit code {code}{said}{advice and '; '}{advice}"
