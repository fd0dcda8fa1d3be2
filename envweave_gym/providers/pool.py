"""Replicas of one kind: those in use, those that are ready for the next to come, and those at rest."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from envweave_gym.core.faults import NotAvailable
from envweave_gym.os_support.process_local import Owner
from envweave_gym.providers.base import at_release
from envweave_gym.providers.replica import Replica, Start
from envweave_gym.providers.together import at_once, is_ending, start_all
from envweave_gym.providers.watch import Watch
from envweave_gym.remote.upkeep import users_of

_COURTESY = 0.1
"""So many seconds a new replica is put off, for the sake of whoever has just taken one."""
_LAST_ROUND = 2.0
"""So many seconds the last look at those that are ready is waited for."""
_TURN = 5.0
"""So many seconds a replica may take that is just put to rest, or woken, until it can be ended."""
_log = logging.getLogger(__name__)


class Pool:
    """Hands out replicas, and takes them back when the last environment that used them is closed.

    One that comes back is ended. It is started anew when it is wanted: at once, where the pool has to keep
    some ready, else by the next who asks, or by the environment that was closed and is reset after all.
    """

    def __init__(self, start: Start) -> None:
        self._start, self._owner = start, Owner()
        self._used: list[Replica] = []
        self._ready: list[Replica] = []
        self._resting: list[Replica] = []
        self._held: Counter[Replica] = Counter()
        """How many have taken each, and have not come to use it yet."""
        self._size = self._coming = 0
        self._error: Exception | None = None
        self._taking, self._changed = threading.Lock(), threading.Condition()
        self._watch: Watch | None = None

    def take(self, count: int) -> list[Replica]:
        """So many replicas, those in use first; what is missing starts at the same time.

        In a :func:`~envweave_gym.providers.base.release_unused` block they count as used until it ends.
        """
        taken: list[Replica] = []
        is_settled = at_release(lambda: self._settle(taken))
        try:
            with self._taking:
                with self._changed:
                    self._sort()
                    self._used += _cut(self._ready, count - len(self._used))
                    self._hold(self._used[:count], taken)
                    woken = _cut(self._resting, count - len(taken))
                self._wake(woken, taken)
                new = start_all([self._started] * (count - len(taken)))
                with self._changed:
                    self._used += new
                    self._hold(new, taken)
                    self._fill_soon()
                return list(taken)
        finally:
            if not is_settled:
                self._release(taken)

    def _wake(self, replicas: list[Replica], taken: list[Replica]) -> None:
        """Start those again that were at rest; another takes the place of one that cannot be."""
        errors: list[BaseException | None] = []
        try:
            errors += at_once([one.ensure for one in replicas])
        finally:
            for replica in replicas[len(errors) :]:  # somebody has interrupted
                self._in_background(self._put_to_rest, replica)
        for replica, error in zip(replicas, errors, strict=True):
            if error is None:
                with self._changed:
                    self._used.append(replica)
                    self._hold([replica], taken)
            elif isinstance(error, Exception):
                _log.info("%s is given up: %s", replica.url, error)
                replica.stop()
            else:
                raise error

    # Those that are taken, and that nobody has come to use yet

    def _hold(self, replicas: list[Replica], taken: list[Replica]) -> None:
        """Have them count as used, with the lock held."""
        self._held.update(replicas)
        taken += replicas

    def _release(self, taken: list[Replica]) -> None:
        with self._changed:
            self._held.subtract(taken)
            self._held = +self._held

    def _settle(self, taken: list[Replica]) -> None:
        """Whoever took them has made what he wanted: those that he did not need end."""
        self._release(taken)
        with self._changed:
            surplus = [replica for replica in set(taken) if not self._is_in_use(replica)]
        for error in at_once([partial(self._take_back, replica) for replica in surplus]):
            if isinstance(error, Exception):
                _log.warning("a replica that nobody uses cannot be ended: %s", error)

    def keep_ready(self, size: int) -> None:
        """Keep so many ready from now on, beside those in use."""
        with self._changed:
            self._size, self._error = size, None
            surplus = _cut(self._ready, len(self._ready) - size)
            self._fill_soon()
            watch = self._watch
            if size and watch is None:
                self._watch = Watch(lambda: list(self._ready), keep_up=self._keep_up)
            elif not size and watch is not None:
                watch.end()
                self._watch = None
        if watch is not None and not size:
            watch.wait(_LAST_ROUND)
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
        """End one that nobody uses any more, unless somebody has come to use it, or will."""
        if not self._owner.is_here():
            return
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_in_use(replica) or self._place_of(replica), _TURN):
                return  # it is given up
            place = self._place_of(replica)
            if place is None or self._is_in_use(replica):
                return
            place.remove(replica)
            later = self._size > 0
        if later:
            self._in_background(self._put_to_rest, replica)
        else:
            self._put_to_rest(replica)

    def _is_in_use(self, replica: Replica) -> bool:
        return self._held[replica] > 0 or users_of(replica.url) > 0

    def _place_of(self, replica: Replica) -> list[Replica] | None:
        """Where it is; nowhere while it is put to rest or woken."""
        places = (self._used, self._ready, self._resting)
        return next((place for place in places if replica in place), None)

    def _put_to_rest(self, replica: Replica) -> None:
        try:
            replica.rest()
        finally:
            with self._changed:
                self._resting.append(replica)
                self._changed.notify_all()

    def _keep_up(self, replica: Replica) -> bool:
        """Start one that waits and has died; one that was put to rest meanwhile is not woken."""
        with self._changed:
            if replica not in self._ready:
                return False
        replica.ensure()
        with self._changed:
            is_wanted = replica in self._ready or replica in self._used
        if not is_wanted:
            self._take_back(replica)
        return is_wanted

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

        try:
            threading.Thread(target=run, name="pool of replicas", daemon=True).start()
        except RuntimeError:  # this machine has no more threads, or the process is ending
            run()


def _cut(replicas: list[Replica], count: int) -> list[Replica]:
    """The first so many of them, which are taken out."""
    taken = replicas[: max(count, 0)]
    del replicas[: max(count, 0)]
    return taken
