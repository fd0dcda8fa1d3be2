"""Counts the processes of this container that the kernel has killed because memory ran out."""

from __future__ import annotations

import re
from pathlib import Path

TOO_LARGE = "it took more memory than there is; give the server more, as with memory="
"""Why a process has ended that the kernel has killed."""
_COUNTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""The counters of the two versions of the kernel's control groups."""
_KILLED = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills() -> int:
    """The number of processes that were killed so far; 0 where the kernel does not count them."""
    for path in _COUNTS:
        try:
            found = _KILLED.search(Path(path).read_text())
        except OSError:
            continue
        if found is not None:
            return int(found[1])
    return 0
