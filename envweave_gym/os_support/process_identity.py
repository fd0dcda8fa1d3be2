"""Identity of processes: PID and start time, and the PID namespace, boot and machine that these belong to.

A PID alone is not enough: it is reused, and means a different process in each container.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import uuid
from functools import cache
from pathlib import Path

_UNSEEN = "there"
"""Start time of a process that exists but is hidden in ``/proc``."""
_OWNER = re.compile(r"([1-9]\d{0,8})-(.*)", re.ASCII)


def is_gone(owner: str) -> bool:
    """Return whether the process ``"<pid>-<start time>"`` has ended; a hidden process counts as alive."""
    known = _OWNER.fullmatch(owner)
    return known is None or began(int(known[1])) not in (known[2], _UNSEEN)


@cache
def machine() -> str:
    """Return a name of this machine: a digest of its machine ID, because the ID itself is confidential."""
    try:
        number = Path("/etc/machine-id").read_text().strip()
    except OSError:
        number = ""
    return hashlib.sha256(f"envweave {number}".encode()).hexdigest()[:32] if number else socket.gethostname()


@cache
def boot_id() -> str:
    """Return the ID of this boot of the machine, which is the same in all its containers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # no Linux
        return socket.gethostname()


def processes_seen() -> str:
    """Return boot ID and PID namespace as text; where these are equal, a PID means the same process."""
    return f"{boot_id()}.{namespace()}"


def namespace() -> str:
    """Return the ID of this process's PID namespace."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:  # no Linux
        return f"{uuid.getnode():x}"


def began(pid: int) -> str:
    """Return a process's start time in clock ticks since boot; empty if it does not exist or is a zombie."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state == "Z" else fields[18]
    except (OSError, IndexError):
        return _UNSEEN if _exists(pid) else ""


def _exists(pid: int) -> bool:
    """Return whether a process exists, even if ``/proc`` hides the processes of other users."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
