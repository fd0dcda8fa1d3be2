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
"""Answered calls that are retained, with their requests, for programs that ask again."""
MAX_LOST = 512
"""Calls without an answer that are retained after their programs have hung up."""
MAX_BYTES = 256 << 20
"""Longest bodies of both, in all."""
_Key = tuple[str, str]


class Retries:
    """Calls by caller and digest."""

    def __init__(self) -> None:
        self._calls: dict[_Key, list[Call]] = {}
        self._keys: dict[Call, _Key] = {}
        """The keys of all calls, in the order of their arrival."""
        self._added = self._added_bytes = 0
        """Calls and bytes of their bodies since some were last forgotten."""
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
        """Add a new call, and forget some of too many for which nobody waits."""
        key = _key(call.request)
        with self._lock:
            self._calls.setdefault(key, []).append(call)
            self._keys[call] = key
            self._added += 1
            self._added_bytes += len(call.request.body)
            if self._added > MAX_ENDED or self._added_bytes > MAX_BYTES // 4:
                self._added = self._added_bytes = 0
                self._forget_some()

    def all(self) -> list[Call]:
        """Return the calls of the table, in the order of their arrival."""
        with self._lock:
            return [*self._keys]

    def _forget_some(self) -> None:
        """Forget calls for which nobody waits: first those that were answered, and of these the oldest."""
        # The others are as many as there are connections.
        gone = [call for call in self._keys if call.is_gone]
        ended, lost = [one for one in gone if one.is_settled], [one for one in gone if not one.is_settled]
        forgotten = [*ended[: max(len(ended) - MAX_ENDED, 0)], *lost[: max(len(lost) - MAX_LOST, 0)]]
        others = iter([*ended[-MAX_ENDED:], *lost[-MAX_LOST:]])
        size = sum(len(call.request.body) for call in (*ended[-MAX_ENDED:], *lost[-MAX_LOST:]))
        while size > MAX_BYTES:
            forgotten.append(call := next(others))
            size -= len(call.request.body)
        for call in forgotten:
            key = self._keys.pop(call)
            self._calls[key].remove(call)
            if not self._calls[key]:
                del self._calls[key]


def _key(request: ModelRequest) -> _Key:
    return session_of(request), request.digest


def _retry_count(request: ModelRequest) -> int:
    given = request.headers.get("x-stainless-retry-count", "0")
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 9 else 0
