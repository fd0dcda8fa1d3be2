"""Samples the CPU times of a process tree, to tell whether a program is idle: all its threads wait and use no CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

SAMPLE_S = 0.005
"""Pause between two samples."""
IDLE_SAMPLES = 2
"""Equal samples in a row after which a program counts as idle."""
_RUNNING = ("R", "D", "W")
"""States of threads that run or are about to; sleeping, stopped and dead ones do not."""

CpuTimes = dict[tuple[int, int], str]
"""The CPU time of each thread, by process and thread ID."""


class IdleCheck:
    """Repeated samples of one process tree."""

    def __init__(self, root: int) -> None:
        self._root, self._last, self._equal = root, None, 0
        self._last: CpuTimes | None

    def sample(self) -> bool:
        """Take a sample; return whether the program has been idle in the last :data:`IDLE_SAMPLES`."""
        times = cpu_times(self._root)
        self._equal = self._equal + 1 if times is not None and times == self._last else 0
        self._last = times
        return self._equal >= IDLE_SAMPLES


def cpu_times(root: int) -> CpuTimes | None:
    """Return the CPU times of all threads of a process and its descendants; ``None`` if one runs, or without /proc."""
    times: CpuTimes = {}
    for process in _tree(root):
        for thread in _threads(process):
            time = _time_of(thread)
            if time is None:
                return None
            times[process, int(thread.name)] = time
    return times or None


def _tree(root: int) -> Iterator[int]:
    waiting, seen = [root], {root}
    while waiting:
        process = waiting.pop()
        yield process
        for thread in _threads(process):
            for child in map(int, _text(thread / "children").split()):
                if child not in seen:
                    seen.add(child)
                    waiting.append(child)


def _threads(process: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{process}/task").iterdir())
    except OSError:  # it has ended, or this is no Linux
        return []


def _time_of(thread: Path) -> str | None:
    """Return the CPU time of a thread as text; ``""`` for one that has ended, and ``None`` for one that runs."""
    fields = _text(thread / "stat").rpartition(")")[2].split()
    if not fields:
        return ""
    if fields[0] in _RUNNING:
        return None
    # Nanoseconds, and without schedstat in clock ticks.
    return _text(thread / "schedstat").partition(" ")[0] or f"{fields[11]} {fields[12]}"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
