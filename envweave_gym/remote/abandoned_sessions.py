"""Sends DELETE for abandoned sessions in the background, which frees their slots on the server."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from envweave_gym.os_support.process_local import ProcessLocal
from envweave_gym.remote.address import Address

_TIMEOUT_S = 5.0
"""Time for the DELETE of a session; after that its lease on the server ends it."""
_log = logging.getLogger(__name__)

_Queue = deque[tuple[str, float]]


class _Deletions:
    """Queues of sessions to delete, with deadlines: one queue and one thread for each server.

    A thread ends, and removes its queue, when the queue is empty.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queues: dict[Address, _Queue] = {}


_deletions = ProcessLocal(_Deletions)


def delete_abandoned(address: Address, session_id: str) -> None:
    """Delete a session in the background, even if its last call is still running on the server.

    A server that does not run is not started for the deletion.
    """
    if address.connector().sees_abandoned:
        return
    deletions = _deletions.value
    with deletions.lock:
        has_thread = address in deletions.queues
        queue = deletions.queues.setdefault(address, deque())
        queue.append((session_id, time.monotonic() + _TIMEOUT_S))
    if has_thread:
        return
    thread = threading.Thread(
        target=_delete_all, args=(deletions, address), name=f"deletions at {address.url}", daemon=True
    )
    try:
        thread.start()
    except RuntimeError as error:  # this machine has no more threads
        with deletions.lock:
            del deletions.queues[address]
        _log.debug("session %s of %s is left to its lease: %s", session_id, address.url, error)


def _delete_all(deletions: _Deletions, address: Address) -> None:
    queue = deletions.queues[address]
    while True:
        with deletions.lock:
            if not queue:
                del deletions.queues[address]
                return
            session_id, deadline = queue.popleft()
        try:
            address.connector().delete(session_id, deadline)
        except Exception as error:  # noqa: BLE001 - whatever it is, the session ends with its lease
            _log.debug("session %s of %s is left to its lease: %s", session_id, address.url, error)
