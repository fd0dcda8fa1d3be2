"""Table of a port's recent calls, in which an equal request finds the call that it repeats.

No program sends an identity with a retry: the same caller sends the same bytes, over another connection.
"""

from __future__ import annotations

import threading

from envweave_gym.programs.callers import session_of
from envweave_gym.programs.model_request import ModelRequest
from envweave_gym.programs.port.call import Call
from envweave_gym.programs.port.connection import Connection

MAX_ENDED = 16
"""Answered calls that are retained at least, with their requests, for programs that ask again."""
_Key = tuple[str, str]


class Retries:
    """Calls by caller and digest."""

    def __init__(self) -> None:
        self._calls: dict[_Key, list[Call]] = {}
        self._count = 0
        self._lock = threading.Lock()

    def joined(self, request: ModelRequest, connection: Connection) -> Call | None:
        """Attach a connection to the earlier call that its request repeats, and return it, if there is one.

        It repeats a call whose answer has not arrived and whose connection has ended, or if the program counts its
        retries, the last one that was answered. All else is a new call, as when several samples are drawn.
        """
        with self._lock:
            calls = [*self._calls.get(_key(request), [])]
        # Without the table's lock, as a call waits until an answer that is being sent has been.
        found = next((call for call in calls if call.attach(connection)), None)
        if found is None and _retry_count(request) > 0:
            again = (call for call in reversed(calls) if call.attach(connection, if_delivered=True))
            found = next(again, None)
        return found

    def add(self, call: Call) -> None:
        """Add a new call, and forget the oldest of too many that have ended."""
        with self._lock:
            self._calls.setdefault(_key(call.request), []).append(call)
            self._count += 1
            if self._count > 2 * MAX_ENDED:
                self._forget_oldest()

    def all(self) -> list[Call]:
        """Return the calls of the table."""
        with self._lock:
            return [call for calls in self._calls.values() for call in calls]

    def _forget_oldest(self) -> None:
        every = [(key, call) for key, calls in self._calls.items() for call in calls]
        every.sort(key=lambda pair: pair[1].number)
        ended = sum(not call.is_open for _, call in every)
        self._calls = {}
        for key, call in every:
            if not call.is_open and ended > MAX_ENDED:
                ended -= 1
            else:
                self._calls.setdefault(key, []).append(call)
        # Open calls do not count: they are as many as there are connections.
        self._count = ended


def _key(request: ModelRequest) -> _Key:
    return session_of(request), request.digest


def _retry_count(request: ModelRequest) -> int:
    given = request.headers.get("x-stainless-retry-count", "0")
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 9 else 0
