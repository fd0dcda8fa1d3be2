"""Whose a container is, written on it, so that what a killed owner has left behind is found."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from envweave_gym.os_support.process_identity import began, boot_id, is_gone, machine, processes_seen

OWNER = "envweave.owner"
"""The process that started it: its number, and when it began, as numbers are used again."""
HOST, BOOT, UNTIL = "envweave.host", "envweave.boot", "envweave.until"
"""The machine of the owner, which processes the number means there, and the time after which a container is
taken for left behind whose owner cannot be seen from here: one of another machine, or of a container."""

LEASE = 24 * 3600.0
"""So many seconds a container may live whose owner cannot be seen."""


def labels_of_owner(lease: float = LEASE) -> dict[str, str]:
    """The labels of what this process starts now."""
    pid = os.getpid()
    return {
        OWNER: f"{pid}-{began(pid)}",
        HOST: machine(),
        BOOT: processes_seen(),
        UNTIL: str(int(time.time() + lease)),
    }


def is_left_behind(labels: Mapping[str, str], until: float | None = None) -> bool:
    """Whether the owner that the labels name is gone, or the time is over that it may be unseen.

    That is ``until``, where it was put off since the labels were written.
    """
    seen = labels.get(BOOT, "")
    if seen == processes_seen():
        return is_gone(labels.get(OWNER, ""))
    if labels.get(HOST) == machine() and seen.partition(".")[0] != boot_id():
        return True  # this machine has been started anew since
    if until is None:
        until = lease_in(labels)
    return 0 < until < time.time()


def lease_in(labels: Mapping[str, str]) -> float:
    """The time in the labels; 0 where there is none."""
    told = labels.get(UNTIL, "")
    return float(told) if told.isdecimal() else 0.0
