"""The lease of containers, renewed for as long as their owner lives: who cannot see the owner goes by that.

The labels of a container stay as they were made; what can be changed while it runs is its name.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from typing import Any, Protocol
from weakref import WeakSet

from envweave_gym.containers.ownership import LEASE, lease_in
from envweave_gym.os_support.process_local import ProcessLocal

EVERY = 60.0
"""So many seconds pass between two looks at the leases, also after this machine has slept."""
_NAME = re.compile(r"(envweave-[0-9a-f]{12})(?:-until-(\d{1,12}))?", re.ASCII)
_log = logging.getLogger(__name__)


class Leaseholder(Protocol):
    """Has a container, or will have."""

    def renew(self) -> None:
        """Renew its lease, where it has one now."""
        ...


class _Leases:
    """The leases of this process, and the thread that renews them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holders: WeakSet[Leaseholder] = WeakSet()
        self.thread: threading.Thread | None = None


_leases = ProcessLocal(_Leases)


def new_name() -> str:
    """A name for a container whose lease can be renewed."""
    return f"envweave-{secrets.token_hex(6)}"


def lease_of(container: Any) -> float:
    """Until when it may live without an owner who is seen; 0 where nothing says so."""
    named = _NAME.fullmatch(container.name or "")
    return max(lease_in(container.labels), float((named and named[2]) or 0))


def renew(container: Any) -> None:
    """Renew the lease of a container once half of it is over; one that has another name by now keeps that."""
    named = _NAME.fullmatch(container.name or "")
    if named and lease_of(container) - time.time() < LEASE / 2:
        container.rename(f"{named[1]}-until-{int(time.time() + LEASE)}")
        container.reload()


def keep_leased(holder: Leaseholder) -> None:
    """Renew the leases of this one too, until it is forgotten or the process ends."""
    leases = _leases.value
    with leases.lock:
        leases.holders.add(holder)
        if leases.thread is None:
            leases.thread = threading.Thread(target=_renew_all, name="leases of containers", daemon=True)
            leases.thread.start()


def _renew_all() -> None:
    while True:
        time.sleep(EVERY)
        _renew_each()  # which keeps none of them alive meanwhile


def _renew_each() -> None:
    with _leases.value.lock:
        holders = list(_leases.value.holders)
    for holder in holders:
        try:
            holder.renew()
        except Exception as error:  # noqa: BLE001 - the engine may be gone, and come back
            _log.warning("a lease cannot be renewed, and is tried again in %g s: %s", EVERY, error)
