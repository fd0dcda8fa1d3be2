"""Registry, by URL, of the servers that this process has started: callbacks that restart them, and their users.

A client that needs a server has it started by its URL (:func:`ensure`, :func:`begin`). The server is stopped when
its last user is closed or garbage-collected.
"""

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

_STOP_DELAY_S = 0.2
"""Delay before a server is stopped after its last user was garbage-collected, so that the user disconnects first."""
_log = logging.getLogger(__name__)


@dataclass
class Upkeep:
    """Callbacks that start and stop one server, and the reason for which it ended last."""

    ensure: Callable[[], None]
    """Starts the server unless it runs."""
    unused: Callable[[], None] | None = None
    """Called when the server's last user is closed or garbage-collected."""
    shortcut: Callable[[], tuple[str, int] | None] | None = None
    """Returns host and port of a more direct way to the server than its URL, or ``None``."""
    trusted: bool = True
    """Whether clients may import the classes of spaces that the server names."""
    ended: tuple[float, str] | None = None
    """Time at which the server was last found to have ended, and the reason."""

    def has_ended(self, why: str) -> None:
        """Record why the server has ended, for the error messages of lost sessions."""
        self.ended = time.monotonic(), why


_kept: dict[str, Upkeep] = {}
_stopped: dict[str, float] = {}
"""Time at which this process stopped a server for good, by URL."""
_users: ProcessLocal[dict[str, dict[int, weakref.finalize[..., Any]]]] = ProcessLocal(dict)
"""Users of each server by URL: for the ``id()`` of each user its finalizer."""


def keep_up(url: str, upkeep: Upkeep | None) -> None:
    """Register the callbacks for the server at ``url``; ``None`` removes them, when the server is stopped for good."""
    if upkeep is not None:
        _kept[url] = upkeep
        _stopped.pop(url, None)
    elif _kept.pop(url, None) is not None:
        _stopped[url] = time.monotonic()


def ensure(url: str) -> None:
    """Start the server at ``url`` unless it runs; do nothing if :func:`keep_up` has not registered it."""
    if (upkeep := _kept.get(url)) is not None:
        upkeep.ensure()


def is_kept(url: str) -> bool:
    """Return whether callbacks are registered for ``url``."""
    return url in _kept


def is_trusted(url: str) -> bool:
    """Return whether this process has started the server, and trusts it to name classes to import."""
    return (upkeep := _kept.get(url)) is not None and upkeep.trusted


def was_stopped(url: str, since: float) -> bool:
    """Return whether this process has stopped the server for good after the time ``since``.

    Another server may have used the same port before, which must not count.
    """
    return _stopped.get(url, -math.inf) >= since


def why_ended(url: str, since: float) -> str:
    """Return why the server has ended after the time ``since``; empty if this process does not know."""
    upkeep = _kept.get(url)
    if upkeep is None or upkeep.ended is None:
        return ""
    at, why = upkeep.ended
    return why if at >= since else ""


# Users


def join(url: str, user: Any) -> None:
    """Register an object as a user of the server, until :meth:`leave` or its garbage collection."""
    users = _users.value.setdefault(url, {})
    if id(user) not in users:
        users[id(user)] = finalizer = weakref.finalize(user, _user_collected, url, id(user))
        finalizer.atexit = False


def leave(url: str, user: Any) -> None:
    """Remove a user of the server; the last one to leave stops the server."""
    finalizer = _users.value.get(url, {}).pop(id(user), None)
    if finalizer is not None:
        finalizer.detach()
        _end_unless_used(url)


def users_of(url: str) -> int:
    """Return the number of users of the server in this process."""
    return len(_users.value.get(url, ()))


def _user_collected(url: str, number: int) -> None:
    """Remove a garbage-collected user; if it was the last, stop the server from another thread.

    Finalizers run at any time, while any lock may be held, so this one must not stop the server itself.
    """
    if _users.value.get(url, {}).pop(number, None) is None or users_of(url):
        return
    # Not threading.Thread, whose start() takes a lock that the interrupted thread may hold.
    try:
        start_new_thread(_end_soon, (url,))
    except RuntimeError as error:  # at the end of the process, which ends its servers too
        _log.debug("%s is not ended, although nobody uses it: %s", url, error)


def _end_soon(url: str) -> None:
    time.sleep(_STOP_DELAY_S)
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
    """Start of a server in a thread, which several callers may wait for, each with a timeout."""

    def __init__(self, url: str, upkeep: Upkeep) -> None:
        self._url, self._upkeep = url, upkeep
        self._error: Exception | None = None
        self._is_over = threading.Event()

    def run(self) -> None:
        """Start the server, and keep the error for :meth:`wait`; body of the thread."""
        try:
            self._upkeep.ensure()
        except Exception as error:  # noqa: BLE001 - whoever waits for it raises it
            self._error = error
        finally:
            if _starts.value.get(self._url) is self:
                del _starts.value[self._url]
            self._is_over.set()

    def wait(self, seconds: float) -> None:
        """Wait until the server has started; raise the error of the start, or ``TimeoutError`` after ``seconds``."""
        if not self._is_over.wait(seconds):
            raise TimeoutError(f"{self._url} is still being started")
        if self._error is not None:
            raise self._error


_starts = ProcessLocal(dict[str, Start])
"""The starts in progress, by URL."""


def begin(url: str) -> Start | None:
    """Start the server in a thread, or return the start in progress; ``None`` if no callbacks are registered."""
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
    """Return host and port of a more direct way to the server than its URL, or ``None``."""
    upkeep = _kept.get(url)
    return None if upkeep is None or upkeep.shortcut is None else upkeep.shortcut()
