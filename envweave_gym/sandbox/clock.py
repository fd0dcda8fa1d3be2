"""How long a step may take: its own time runs out, that of the host does not count, all of it has an end."""

from __future__ import annotations

import time


class Clock:
    """Stands still while the program waits for the host."""

    def __init__(self, seconds: float, wall: float) -> None:
        """``seconds`` of the program's own, and ``wall`` with all it waits for."""
        self._started = self._since = time.monotonic()
        self._spent = 0.0
        self._seconds, self._end = seconds, self._started + wall
        self._is_paused = False
        self._held: float | None = None

    def pause(self) -> None:
        """The program waits."""
        if not self._is_paused:
            self._spent += time.monotonic() - self._since
            self._is_paused = True

    def go_on(self) -> None:
        """It has what it waited for."""
        if self._is_paused:
            self._since, self._is_paused = time.monotonic(), False

    def hold(self) -> None:
        """It is frozen: neither its own time passes nor all time."""
        self._held = time.monotonic()

    def release(self) -> None:
        """It is frozen no more."""
        if self._held is not None:
            passed, self._held = time.monotonic() - self._held, None
            self._started += passed
            self._since += passed
            self._end += passed

    def left(self) -> float:
        """The seconds until its time is over."""
        now = time.monotonic()
        if self._is_paused:
            return self._end - now
        return min(self._seconds - self._spent - (now - self._since), self._end - now)

    def spent(self) -> float:
        """The seconds of the program's own."""
        return self._spent + (0.0 if self._is_paused else time.monotonic() - self._since)

    def wall(self) -> float:
        """All seconds."""
        return time.monotonic() - self._started
