"""Replicas of one kind: those in use, those that are ready for the next to come, and those at rest."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial

from envweave_gym.faults import NotAvailable
from envweave_gym.providers.health import Watch
from envweave_gym.providers.replica import Replica, Start, at_once, is_ending, start_all
from envweave_gym.remote.upkeep import users_of

_COURTESY = 0.1
"""So many seconds a new replica is put off, for the sake of whoever has just taken one."""
_log = logging.getLogger(__name__)


class Pool:
    """Hands out replicas, and takes them back when the last environment that used them is closed.

    One that comes back is ended. It is started anew when it is wanted: at once, where the pool has to keep
    some ready, else by the next who asks, or by the environment that was closed and is reset after all.
    """

    def __init__(self, start: Start) -> None:
        self._start, self._owner = start, os.getpid()
        self._used: list[Replica] = []
        self._ready: list[Replica] = []
        self._resting: list[Replica] = []
        self._size = self._coming = 0
        self._error: Exception | None = None
        self._taking, self._changed = threading.Lock(), threading.Condition()
        self._watch: Watch | None = None

    def take(self, count: int) -> list[Replica]:
        """So many replicas, those in use first; what is missing starts at the same time."""
        with self._taking:
            with self._changed:
                self._sort()
                missing = max(count - len(self._used), 0)
                self._used += _cut(self._ready, missing)
                woken = _cut(self._resting, count - len(self._used))
            self._wake(woken)
            new = start_all([self._started] * (count - len(self._used)))
            with self._changed:
                self._used += new
                self._fill_soon()
                return self._used[:count]

    def _wake(self, replicas: list[Replica]) -> None:
        """Start those again that were at rest; another takes the place of one that cannot be."""
        try:
            errors = at_once([one.ensure for one in replicas])
        except KeyboardInterrupt:
            self._resting += replicas
            raise
        for replica, error in zip(replicas, errors, strict=True):
            if error is None:
                self._used.append(replica)
            else:
                _log.info("%s is given up: %s", replica.url, error)
                replica.stop()

    def keep_ready(self, size: int) -> None:
        """Keep so many ready from now on, beside those in use."""
        with self._changed:
            self._size, self._error = size, None
            surplus = _cut(self._ready, len(self._ready) - size)
            self._fill_soon()
            if size and self._watch is None:
                self._watch = Watch(lambda: list(self._ready))
            elif not size and self._watch is not None:
                self._watch.end()
                self._watch = None
        for error in filter(None, at_once([partial(self._put_to_rest, replica) for replica in surplus])):
            raise error

    def wait(self, seconds: float) -> None:
        """Wait until as many are ready as are to be."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) >= self._size or self._error, seconds)
            if self._error is not None:
                raise self._error
            if len(self._ready) < self._size:
                so_far = f"{len(self._ready)} of {self._size} replicas"
                raise NotAvailable(f"{so_far} are ready after {seconds:g} s")

    def _sort(self) -> None:
        """Those that were closed and used again are in use, wherever they were put."""
        for place in (self._ready, self._resting):
            for replica in [one for one in place if users_of(one.url)]:
                place.remove(replica)
                self._used.append(replica)

    def _take_back(self, replica: Replica) -> None:
        if os.getpid() != self._owner:
            return
        with self._changed:
            for place in (self._used, self._ready, self._resting):
                if replica in place:
                    place.remove(replica)
            later = self._size > 0
        if later:
            self._in_background(self._put_to_rest, replica)
        else:
            self._put_to_rest(replica)

    def _put_to_rest(self, replica: Replica) -> None:
        try:
            replica.rest()
        finally:
            with self._changed:
                self._resting.append(replica)

    # In the background

    def _fill_soon(self) -> None:
        """Start what is missing, with the lock held."""
        missing = self._size - len(self._ready) - self._coming
        self._coming += max(missing, 0)
        for _ in range(missing):
            self._in_background(self._add)

    def _add(self) -> None:
        time.sleep(_COURTESY)
        try:
            replica = self._awake() or self._started()
        except Exception as error:  # noqa: BLE001 - who waits for it hears of it
            if not is_ending():
                _log.warning("a replica that is to be ready cannot be started: %s", error)
            with self._changed:
                self._coming, self._error = self._coming - 1, error
                self._changed.notify_all()
            return
        with self._changed:
            self._coming -= 1
            is_wanted = len(self._ready) < self._size
            if is_wanted:
                self._ready.append(replica)
            self._changed.notify_all()
        if not is_wanted:
            self._put_to_rest(replica)

    def _awake(self) -> Replica | None:
        """One that was at rest, and is started again."""
        with self._changed:
            self._sort()
            replica = self._resting.pop() if self._resting else None
        if replica is None:
            return None
        try:
            replica.ensure()
        except NotAvailable as error:
            _log.info("%s is given up: %s", replica.url, error)
            replica.stop()
            return None
        return replica

    def _started(self) -> Replica:
        replica = self._start()
        replica.upkeep.unused = partial(self._take_back, replica)
        return replica

    def _in_background(self, work: Callable[..., None], *arguments: Replica) -> None:
        def run() -> None:
            try:
                work(*arguments)
            except Exception as error:  # noqa: BLE001 - nobody waits for it
                _log.warning("a replica cannot be ended, or started: %s", error)

        threading.Thread(target=run, name="pool of replicas", daemon=True).start()


def _cut(replicas: list[Replica], count: int) -> list[Replica]:
    """The first so many of them, which are taken out."""
    taken = replicas[: max(count, 0)]
    del replicas[: max(count, 0)]
    return taken
