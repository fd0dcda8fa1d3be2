"""Whether the kernel has killed processes beside this one for want of memory, as far as it says so."""

from __future__ import annotations

import re
from pathlib import Path

_COUNTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""What tells so of this container, by either version of the kernel's control groups."""
_KILLED = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def killed_for_memory() -> int:
    """How many processes of this container were killed so; 0 where nobody counts them."""
    for path in _COUNTS:
        try:
            found = _KILLED.search(Path(path).read_text())
        except OSError:
            continue
        if found is not None:
            return int(found[1])
    return 0
