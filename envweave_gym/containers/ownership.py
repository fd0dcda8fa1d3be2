"""Whose a container is, written on it, so that what a killed owner has left behind is found."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

OWNER = "envweave.owner"
"""The process that started it: its number, and when it began, as numbers are used again."""
HOST, BOOT, UNTIL = "envweave.host", "envweave.boot", "envweave.until"
"""The machine of the owner, which of its runs it is, and the time after which a container of another machine,
whose processes cannot be seen from here, is taken for left behind."""

LEASE = 24 * 3600.0
"""So many seconds a container may live whose owner cannot be seen."""


def labels_of_owner(lease: float = LEASE) -> dict[str, str]:
    """The labels of what this process starts now."""
    pid = os.getpid()
    return {
        OWNER: f"{pid}-{began(pid)}",
        HOST: socket.gethostname(),
        BOOT: boot_id(),
        UNTIL: str(int(time.time() + lease)),
    }


def is_left_behind(labels: Mapping[str, str]) -> bool:
    """Whether the owner that the labels name is gone."""
    if labels.get(BOOT) == boot_id():
        pid, _, start = labels.get(OWNER, "").partition("-")
        return not pid.isdecimal() or began(int(pid)) != start
    if labels.get(HOST) == socket.gethostname():
        return True  # this machine has been started anew since
    until = labels.get(UNTIL, "")
    return until.isdecimal() and time.time() > int(until)


@cache
def boot_id() -> str:
    """This run of this machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # no Linux
        return socket.gethostname()


def began(pid: int) -> str:
    """When a process began, in ticks since the machine did; empty where there is none, or its remains."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state == "Z" else fields[18]
    except (OSError, IndexError):
        return _is_there(pid)


def _is_there(pid: int) -> str:
    """What can be said of a process where there is no ``/proc``: that it is there."""
    if Path("/proc/self").exists():
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return "there"
    return "there"
