"""Whose a container is, written on it, so that what a killed owner has left behind is found."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path

OWNER = "envweave.owner"
"""The process that started it: its number, and when it began, as numbers are used again."""
HOST, BOOT, UNTIL = "envweave.host", "envweave.boot", "envweave.until"
"""The machine of the owner, which processes the number means there, and the time after which a container is
taken for left behind whose owner cannot be seen from here: one of another machine, or of a container."""

LEASE = 24 * 3600.0
"""So many seconds a container may live whose owner cannot be seen."""
_UNSEEN = "there"
"""When a process began of which no more can be said than that it is there."""
_OWNER = re.compile(r"([1-9]\d{0,8})-(.*)", re.ASCII)


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


def is_gone(owner: str) -> bool:
    """Whether this process, given as in :data:`OWNER`, runs no more; one that cannot be looked at does."""
    known = _OWNER.fullmatch(owner)
    return known is None or began(int(known[1])) not in (known[2], _UNSEEN)


@cache
def machine() -> str:
    """What tells this machine from others; a digest, as the number itself is not for everybody to know."""
    try:
        number = Path("/etc/machine-id").read_text().strip()
    except OSError:
        number = ""
    return hashlib.sha256(f"envweave {number}".encode()).hexdigest()[:32] if number else socket.gethostname()


@cache
def boot_id() -> str:
    """This run of this machine; containers of the same machine have the same."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # no Linux
        return socket.gethostname()


def processes_seen() -> str:
    """Which processes the numbers of processes mean here: those of this run of this machine or container."""
    return f"{boot_id()}.{namespace()}"


def namespace() -> str:
    """Which processes of this machine can be seen from here: all, or those of the same container."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:  # no Linux
        return f"{uuid.getnode():x}"


def began(pid: int) -> str:
    """When a process began, in ticks since the machine did; empty where there is none, or its remains."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state == "Z" else fields[18]
    except (OSError, IndexError):
        return _UNSEEN if _is_there(pid) else ""


def _is_there(pid: int) -> bool:
    """Whether there is a process that ``/proc`` does not show: there is none, or it hides those of others."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
