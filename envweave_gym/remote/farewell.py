"""The last word to sessions that are lost: that nobody wants them any more, so that their place is free."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from http.client import HTTPConnection
from urllib.parse import urlsplit

from envweave_gym.remote.address import Address
from envweave_gym.remote.dialling import dialled
from envweave_gym.remote.transport import left

_DEADLINE = 5.0
"""So many seconds after the loss of its session a server is told, or left to the lease."""
_log = logging.getLogger(__name__)

_Waiting = deque[tuple[str, float]]
"""Sessions that are to be closed, and until when that is tried."""
_waiting: dict[tuple[int, Address], _Waiting] = {}
"""Those of each server, by process: a thread tells them one after the other, and ends with the last."""
_locks: dict[int, threading.Lock] = {}
"""By process: one that is forked while its parent holds a lock has another."""


def say_farewell(address: Address, session_id: str) -> None:
    """Let the server close a session, whose call may still be under way there, without waiting for it.

    No server is started for that, and an actor knows by itself who has left.
    """
    if address.is_actor:
        return
    key = os.getpid(), address
    with _lock():
        known = key in _waiting
        _waiting.setdefault(key, deque()).append((session_id, time.monotonic() + _DEADLINE))
    if known:
        return
    try:
        threading.Thread(target=_tell_all, args=key, name=f"farewell to {address.url}", daemon=True).start()
    except RuntimeError as error:  # this machine has no more threads
        with _lock():
            del _waiting[key]
        _log.debug("%s is not told that %s is lost: %s", address.url, session_id, error)


def _lock() -> threading.Lock:
    return _locks.setdefault(os.getpid(), threading.Lock())


def _tell_all(pid: int, address: Address) -> None:
    """Tell a server of one session after the other, until no more are waiting."""
    waiting = _waiting[pid, address]
    while True:
        with _lock():
            if not waiting:
                del _waiting[pid, address]
                return
            session_id, deadline = waiting.popleft()
        try:
            _tell(address, session_id, deadline)
        except Exception as error:  # noqa: BLE001 - whatever keeps it from being told, the lease ends the session
            _log.debug("%s was not told that %s is lost: %s", address.url, session_id, error)


def _tell(address: Address, session_id: str, deadline: float) -> None:
    place = urlsplit(address.web)
    with dialled(address.url, deadline) as opened:
        request = HTTPConnection(place.netloc)
        request.sock = opened
        opened.settimeout(left(deadline, address.url))
        request.request("DELETE", f"{place.path}/v1/sessions/{session_id}", headers=address.headers())
        opened.settimeout(left(deadline, address.url))
        opened.recv(1)  # it is answered when it is done
