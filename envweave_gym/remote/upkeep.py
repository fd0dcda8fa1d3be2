"""Keeps up the servers of this process: starts them when needed, and ends them when nobody uses them."""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from _thread import start_new_thread
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from envweave_gym.os_support.process_local import ProcessLocal

_LAST_WORDS = 0.2
"""Seconds before a server is ended whose last user was garbage-collected, so that the user hangs up first."""
_log = logging.getLogger(__name__)


@dataclass
class Upkeep:
    """The callbacks that keep a server up, and the reason for which it ended last."""

    ensure: Callable[[], None]
    """Starts the server unless it runs."""
    unused: Callable[[], None] | None = None
    """Called when the last environment that used the server is closed or garbage-collected."""
    shortcut: Callable[[], tuple[str, int] | None] | None = None
    """Returns a host and port that reach the server more directly than its URL, if there are any."""
    trusted: bool = True
    """Whether clients import the classes of spaces that the server names."""
    ended: tuple[float, str] | None = None
    """The time at which the server was last found to have ended, and the reason."""

    def has_ended(self, why: str) -> None:
        """Record why the server has ended, for the errors of lost sessions."""
        self.ended = time.monotonic(), why


_kept: dict[str, Upkeep] = {}
_stopped: dict[str, float] = {}
"""The time at which this process stopped a server for good, by URL."""
_users: ProcessLocal[dict[str, dict[int, weakref.finalize[..., Any]]]] = ProcessLocal(dict)
"""The finalizer of each user by the ``id()`` of the user, by the URL of the server."""


def keep_up(url: str, upkeep: Upkeep | None) -> None:
    """Keep the server behind this URL up from now on; ``None`` stops that."""
    if upkeep is not None:
        _kept[url] = upkeep
        _stopped.pop(url, None)
    elif _kept.pop(url, None) is not None:
        _stopped[url] = time.monotonic()


def ensure(url: str) -> None:
    """Start the server, if this process keeps it up and it does not run."""
    if (upkeep := _kept.get(url)) is not None:
        upkeep.ensure()


def is_kept(url: str) -> bool:
    """Return whether this process keeps the server up."""
    return url in _kept


def is_trusted(url: str) -> bool:
    """Return whether this process keeps the server up, and trusts it to name classes to import."""
    return (upkeep := _kept.get(url)) is not None and upkeep.trusted


def was_stopped(url: str, since: float) -> bool:
    """Return whether this process has stopped the server for good after ``since``.

    ``since`` matters because another server may use the same port later.
    """
    return _stopped.get(url, -math.inf) >= since


def why_ended(url: str, since: float) -> str:
    """Return why the server has ended after ``since``; empty if this process does not know."""
    upkeep = _kept.get(url)
    if upkeep is None or upkeep.ended is None:
        return ""
    at, why = upkeep.ended
    return why if at >= since else ""


# Users


def join(url: str, user: Any) -> None:
    """Register an object as a user of the server, until it leaves or is garbage-collected."""
    users = _users.value.setdefault(url, {})
    if id(user) not in users:
        users[id(user)] = forgotten = weakref.finalize(user, _forgotten, url, id(user))
        forgotten.atexit = False


def leave(url: str, user: Any) -> None:
    """Remove a user; the server ends with its last user."""
    forgotten = _users.value.get(url, {}).pop(id(user), None)
    if forgotten is not None:
        forgotten.detach()
        _end_unless_used(url)


def users_of(url: str) -> int:
    """Return the number of users of the server in this process."""
    return len(_users.value.get(url, ()))


def _forgotten(url: str, number: int) -> None:
    """Remove a garbage-collected user; if it was the last, end the server in another thread.

    This is a finalizer, which may run at any time and while any lock is held, so it must not end the server itself.
    """
    if _users.value.get(url, {}).pop(number, None) is None or users_of(url):
        return
    try:
        start_new_thread(_end_soon, (url,))
    except RuntimeError as error:  # at the end of the process, which ends its servers too
        _log.debug("%s is not ended, although nobody uses it: %s", url, error)


def _end_soon(url: str) -> None:
    time.sleep(_LAST_WORDS)
    try:
        _end_unless_used(url)
    except Exception as error:  # noqa: BLE001 - nobody waits for it
        _log.warning("%s cannot be ended, although nobody uses it: %s", url, error)


def _end_unless_used(url: str) -> None:
    upkeep = _kept.get(url)
    if not users_of(url) and upkeep is not None and upkeep.unused is not None:
        upkeep.unused()


# Starts that others wait for


class Start:
    """Starts a server in a thread of its own; callers may wait for it with a timeout."""

    def __init__(self, url: str, upkeep: Upkeep) -> None:
        self._url, self._upkeep = url, upkeep
        self._error: Exception | None = None
        self._is_over = threading.Event()

    def run(self) -> None:
        """Start the server, and keep an error for :meth:`wait`; the body of the thread."""
        try:
            self._upkeep.ensure()
        except Exception as error:  # noqa: BLE001 - whoever waits for it raises it
            self._error = error
        finally:
            if _starts.value.get(self._url) is self:
                del _starts.value[self._url]
            self._is_over.set()

    def wait(self, seconds: float) -> None:
        """Wait until the server has started, or raise the error of the start; after ``TimeoutError`` it goes on."""
        if not self._is_over.wait(seconds):
            raise TimeoutError(f"{self._url} is still being started")
        if self._error is not None:
            raise self._error


_starts = ProcessLocal(dict[str, Start])
"""The starts that are under way, by URL."""


def begin(url: str) -> Start | None:
    """Begin to start the server without waiting for it; ``None`` if this process does not keep it up."""
    upkeep, start = _kept.get(url), _starts.value.get(url)
    if upkeep is None or start is not None:
        return start
    start = _starts.value[url] = Start(url, upkeep)
    try:
        threading.Thread(target=start.run, name=f"start of {url}", daemon=True).start()
    except RuntimeError:  # this machine has no more threads, or the process is ending
        start.run()
    return start


def shortcut_to(url: str) -> tuple[str, int] | None:
    """Return a host and port that reach the server more directly than its URL, if this process knows them."""
    upkeep = _kept.get(url)
    return None if upkeep is None or upkeep.shortcut is None else upkeep.shortcut()
