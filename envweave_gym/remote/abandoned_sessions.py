"""Deletes abandoned sessions in the background, which frees their slots on the server."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from envweave_gym.os_support.process_local import ProcessLocal
from envweave_gym.remote.address import Address

_TIMEOUT_S = 5.0
"""Seconds during which a DELETE may be sent; after them the server ends the session by its lease."""
_log = logging.getLogger(__name__)

_Queue = deque[tuple[str, float]]


class _Deletions:
    """A queue for each server, of sessions to delete and their deadlines.

    Each queue has a thread. The thread removes its queue and ends when the queue is empty.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queues: dict[Address, _Queue] = {}


_deletions = ProcessLocal(_Deletions)


def delete_abandoned(address: Address, session_id: str) -> None:
    """Delete a session in the background; its last call may still be under way on the server.

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
