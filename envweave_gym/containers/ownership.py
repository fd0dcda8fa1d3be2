"""Labels and leases that identify containers and Pods whose owner process was killed.

The labels name the owner process. Processes that cannot see it, because they are in a container or on another
machine, check the lease: an owner whose lease has expired counts as ended. A container's labels cannot be
changed while it runs, so the owner renews the lease by renaming the container.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol
from weakref import WeakSet

from envweave_gym.os_support.process_identity import began, boot_id, is_gone, machine, processes_seen
from envweave_gym.os_support.process_local import ProcessLocal

OWNER = "envweave.owner"
"""Label with the owner's PID and start time; a PID alone may be reused."""
HOST, BOOT, UNTIL = "envweave.host", "envweave.boot", "envweave.until"
"""Labels with the owner's machine, with its boot and PID namespace, and with the end of the lease."""
LEASE_S = 24 * 3600.0
RENEW_EVERY_S = 60.0
"""Time between two rounds of renewals."""
_NAME = re.compile(r"(envweave-[0-9a-f]{12})(?:-until-(\d{1,12}))?", re.ASCII)
_log = logging.getLogger(__name__)


def labels_of_owner(lease_s: float = LEASE_S) -> dict[str, str]:
    """Return the labels for a container that this process creates now; the lease ends after ``lease_s`` seconds."""
    pid = os.getpid()
    return {
        OWNER: f"{pid}-{began(pid)}",
        HOST: machine(),
        BOOT: processes_seen(),
        UNTIL: str(int(time.time() + lease_s)),
    }


def is_left_behind(labels: Mapping[str, str], until: float | None = None) -> bool:
    """Return whether the owner in the labels has ended, or is invisible here and its lease has expired.

    ``until`` is the end of a lease that was renewed after the labels were written, in seconds since the epoch.
    """
    seen = labels.get(BOOT, "")
    if seen == processes_seen():
        return is_gone(labels.get(OWNER, ""))
    if labels.get(HOST) == machine() and seen.partition(".")[0] != boot_id():
        return True  # this machine was rebooted since, which ended the owner
    if until is None:
        until = _lease_in(labels)
    return 0 < until < time.time()


def new_name() -> str:
    """Return a random name for a container, in the form that :func:`renew` needs."""
    return f"envweave-{secrets.token_hex(6)}"


def lease_of(container: Any) -> float:
    """Return the end of a container's lease, in seconds since the epoch; 0 if it has none."""
    named = _NAME.fullmatch(container.name or "")
    return max(_lease_in(container.labels), float((named and named[2]) or 0))


def renew(container: Any) -> None:
    """Renew a container's lease once half of it is over, unless somebody has renamed the container."""
    named = _NAME.fullmatch(container.name or "")
    if named and lease_of(container) - time.time() < LEASE_S / 2:
        container.rename(f"{named[1]}-until-{int(time.time() + LEASE_S)}")
        container.reload()


def _lease_in(labels: Mapping[str, str]) -> float:
    until = labels.get(UNTIL, "")
    return float(until) if until.isdecimal() else 0.0


class Leaseholder(Protocol):
    """Owner of a container, as :func:`keep_leased` sees it."""

    def renew(self) -> None:
        """Extend the time after which other machines may remove the current container, if there is one."""
        ...


class _Renewal:
    """Leaseholders of this process, and the thread that renews their leases."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holders: WeakSet[Leaseholder] = WeakSet()
        self.thread: threading.Thread | None = None


_renewal = ProcessLocal(_Renewal)


def keep_leased(holder: Leaseholder) -> None:
    """Call ``holder.renew()`` regularly in the background, while ``holder`` exists."""
    renewal = _renewal.value
    with renewal.lock:
        renewal.holders.add(holder)
        if renewal.thread is None:
            renewal.thread = threading.Thread(target=_renew_all, name="leases of containers", daemon=True)
            renewal.thread.start()


def _renew_all() -> None:
    while True:
        time.sleep(RENEW_EVERY_S)
        _renew_each()  # a function of its own: its locals keep no holder alive during the pause


def _renew_each() -> None:
    with _renewal.value.lock:
        holders = list(_renewal.value.holders)
    for holder in holders:
        try:
            holder.renew()
        except Exception as error:  # noqa: BLE001 - the engine may be gone, and come back
            _log.warning("a lease is not renewed; the next attempt is in %g s: %s", RENEW_EVERY_S, error)
