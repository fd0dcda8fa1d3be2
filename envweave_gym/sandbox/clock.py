"""How long a step may take: its own time runs out, that of the host does not count, all of it has an end."""

from __future__ import annotations

import time


class Clock:
    """Stands still while the program waits for the host."""

    def __init__(self, seconds: float, wall: float) -> None:
        """``seconds`` of the program's own, and ``wall`` with all it waits for."""
        self.started = self._since = time.monotonic()
        self._spent = 0.0
        self._left, self._end = seconds, self.started + wall
        self._is_paused = False

    def pause(self) -> None:
        """The program waits."""
        if not self._is_paused:
            self._spent += time.monotonic() - self._since
            self._is_paused = True

    def go_on(self) -> None:
        """It has what it waited for."""
        if self._is_paused:
            self._since, self._is_paused = time.monotonic(), False

    def left(self) -> float:
        """The seconds until its time is over."""
        now = time.monotonic()
        if self._is_paused:
            return self._end - now
        return min(self._left - self._spent - (now - self._since), self._end - now)

    def spent(self) -> float:
        """The seconds of the program's own."""
        return self._spent + (0.0 if self._is_paused else time.monotonic() - self._since)

    def wall(self) -> float:
        """All seconds."""
        return time.monotonic() - self.started
