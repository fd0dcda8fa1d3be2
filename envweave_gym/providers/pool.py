"""Pools of replicas with the same options: in use, ready for the next environment, or at rest.

The environments of a process that ask for the same options share replicas. A replica is started when the
first environment asks and stopped when the last one that used it is closed, or with the process. A forked
child starts its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from envweave_gym.core.faults import NotAvailable
from envweave_gym.os_support.process_local import Owner, ProcessLocal
from envweave_gym.providers.base import at_release
from envweave_gym.providers.parallel import at_once, is_ending, start_all
from envweave_gym.providers.replica import Replica, Start
from envweave_gym.providers.watch import Watch
from envweave_gym.remote.upkeep import users_of

_DELAY_S = 0.1
"""The delay before another ready replica is started, so that the environment that took one starts faster."""
_LAST_ROUND_S = 2.0
"""The longest wait for the last health check of replicas that are no longer kept ready."""
_TRANSITION_S = 5.0
"""The longest time that a replica takes to be put to rest or started again."""
_log = logging.getLogger(__name__)


class Pool:
    """Hands out replicas, and takes them back when the last environment that used them is closed.

    A returned replica is stopped but retained. It is started again when it is needed: at once if the pool
    keeps some ready, else by the next environment, or by the closed one if that is reset after all.
    """

    def __init__(self, start: Start) -> None:
        self._start, self._owner = start, Owner()
        self._used: list[Replica] = []
        self._ready: list[Replica] = []
        self._resting: list[Replica] = []
        self._held: Counter[Replica] = Counter()
        """Replicas that were taken and that no environment uses yet, with how often they were taken."""
        self._size = self._coming = 0
        """The number that is kept ready, and the number of those that are being started."""
        self._error: Exception | None = None
        self._taking, self._changed = threading.Lock(), threading.Condition()
        self._watch: Watch | None = None

    def take(self, count: int) -> list[Replica]:
        """Take replicas, those in use first; missing ones are started in parallel.

        In a :func:`~envweave_gym.providers.base.release_unused` block they count as used until it ends.
        """
        taken: list[Replica] = []
        in_block = at_release(lambda: self._release_unused(taken))
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
            if not in_block:
                self._release(taken)

    def _wake(self, replicas: list[Replica], taken: list[Replica]) -> None:
        """Start replicas again that were at rest; one that does not start is given up."""
        errors: list[BaseException | None] = []
        try:
            errors += at_once([one.ensure for one in replicas])
        finally:
            for replica in replicas[len(errors) :]:  # on an interrupt there are no errors
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

    # Replicas that were taken and that no environment uses yet

    def _hold(self, replicas: list[Replica], taken: list[Replica]) -> None:
        """Count replicas as used; the caller holds the lock."""
        self._held.update(replicas)
        taken += replicas

    def _release(self, taken: list[Replica]) -> None:
        with self._changed:
            self._held.subtract(taken)
            self._held = +self._held

    def _release_unused(self, taken: list[Replica]) -> None:
        """Release replicas, and stop those that no environment uses."""
        self._release(taken)
        with self._changed:
            surplus = [replica for replica in set(taken) if not self._is_in_use(replica)]
        for error in at_once([partial(self._take_back, replica) for replica in surplus]):
            if isinstance(error, Exception):
                _log.warning("a replica that nobody uses cannot be ended: %s", error)

    # Replicas that are ready

    def keep_ready(self, size: int) -> None:
        """Keep ``size`` replicas ready from now on, beside those in use."""
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
            watch.wait(_LAST_ROUND_S)
        for error in filter(None, at_once([partial(self._put_to_rest, replica) for replica in surplus])):
            raise error

    def wait(self, seconds: float) -> None:
        """Wait until all replicas that are kept ready are."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) >= self._size or self._error, seconds)
            if self._error is not None:
                raise self._error
            if len(self._ready) < self._size:
                so_far = f"{len(self._ready)} of {self._size} replicas"
                raise NotAvailable(f"{so_far} are ready after {seconds:g} s")

    def _sort(self) -> None:
        """Move replicas to those in use whose closed environments were reset again."""
        for replicas in (self._ready, self._resting):
            for replica in [one for one in replicas if users_of(one.url)]:
                replicas.remove(replica)
                self._used.append(replica)

    def _take_back(self, replica: Replica) -> None:
        """Put a replica to rest whose last user is gone, unless another has come or will come."""
        if not self._owner.is_here():
            return
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._is_in_use(replica) or self._list_of(replica), _TRANSITION_S
            ):
                return  # it was given up
            replicas = self._list_of(replica)
            if replicas is None or self._is_in_use(replica):
                return
            replicas.remove(replica)
            later = self._size > 0
        if later:
            self._in_background(self._put_to_rest, replica)
        else:
            self._put_to_rest(replica)

    def _is_in_use(self, replica: Replica) -> bool:
        return self._held[replica] > 0 or users_of(replica.url) > 0

    def _list_of(self, replica: Replica) -> list[Replica] | None:
        """The list that a replica is in; none while it is put to rest or started again."""
        return next((one for one in (self._used, self._ready, self._resting) if replica in one), None)

    def _put_to_rest(self, replica: Replica) -> None:
        try:
            replica.rest()
        finally:
            with self._changed:
                self._resting.append(replica)
                self._changed.notify_all()

    def _keep_up(self, replica: Replica) -> bool:
        """Start a ready replica again that has died; one that was put to rest meanwhile stays so."""
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
        """Start missing ready replicas; the caller holds the lock."""
        missing = self._size - len(self._ready) - self._coming
        self._coming += max(missing, 0)
        for _ in range(missing):
            self._in_background(self._add)

    def _add(self) -> None:
        time.sleep(_DELAY_S)
        try:
            replica = self._awake() or self._started()
        except Exception as error:  # noqa: BLE001 - wait() raises it
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
        """Start a replica again that was at rest; ``None`` if there is none, or it does not start."""
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
            except Exception as error:  # noqa: BLE001 - no caller waits for it
                _log.warning("a replica cannot be ended, or started: %s", error)

        try:
            threading.Thread(target=run, name="pool of replicas", daemon=True).start()
        except RuntimeError:  # this machine has no more threads, or the process is ending
            run()


def _cut(replicas: list[Replica], count: int) -> list[Replica]:
    """Remove the first ``count`` replicas from the list, and return them."""
    taken = replicas[: max(count, 0)]
    del replicas[: max(count, 0)]
    return taken


class _Pools(dict[str, Pool]):
    """The pools of this process, by how their replicas are started."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


_pools = ProcessLocal(_Pools)


def pool_of(start: Start) -> Pool:
    """The pool of replicas that ``start`` starts; functions with the same ``repr`` share one."""
    pools, key = _pools.value, repr(start)
    with pools.lock:
        if key not in pools:
            pools[key] = Pool(start)
        return pools[key]


class ReplicaUrl(str):
    """The URL of a replica; unpickling it calls ``again`` for a URL that the reading process can use."""

    again: Callable[[], str]

    @classmethod
    def of(cls, url: str, again: Callable[[], str]) -> ReplicaUrl:
        """Create one."""
        found = cls(url)
        found.again = again
        return found

    def __reduce__(self) -> Any:
        return self.again, ()


def shared_urls(
    start: Start, count: int, warm: int | None = None, again: Callable[[], str] | None = None
) -> list[str]:
    """The URLs of ``count`` shared replicas; missing ones are started in parallel.

    ``warm`` more are kept ready from now on. Unpickling a URL calls ``again``, which by default starts or
    shares a replica of the reading process.
    """
    pool = pool_of(start)
    replicas = pool.take(count)
    if warm is not None:
        pool.keep_ready(warm)
    again = again or partial(_again, start)
    return [ReplicaUrl.of(replica.url, again) for replica in replicas]


def _again(start: Start) -> str:
    return shared_urls(start, 1)[0]
