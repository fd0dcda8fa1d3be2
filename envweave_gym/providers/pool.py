"""Pools of interchangeable replicas: in use, ready for the next environment, or stopped and retained.

Environments of one process that ask for the same options share replicas. A replica is started when the first
environment needs it, and stopped when the last one that used it is closed, or with the process. A forked child
starts its own.
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
from envweave_gym.providers.parallel import is_ending, run_in_parallel, start_all
from envweave_gym.providers.replica import Replica, Start
from envweave_gym.providers.replica_health import Watch
from envweave_gym.remote.started_servers import users_of

_DELAY_S = 0.1
"""Delay before another replica is made ready, so that it does not slow the environment that took one."""
_LAST_ROUND_S = 2.0
"""Longest wait for the last health check of replicas that are no longer kept ready."""
_TRANSITION_S = 5.0
"""Longest time for stopping a replica or starting it again."""
_log = logging.getLogger(__name__)


class Pool:
    """Pool of interchangeable replicas; closing the last environment that uses a replica returns it.

    A returned replica is stopped but retained. It is started again at once if the pool keeps some ready.
    Otherwise the next environment starts it, or the closed one if that is reset after all.
    """

    def __init__(self, start: Start) -> None:
        self._start, self._owner = start, Owner()
        self._used: list[Replica] = []
        self._ready: list[Replica] = []
        self._resting: list[Replica] = []
        self._held: Counter[Replica] = Counter()
        """For replicas that were taken and have no environment yet: how often each was taken."""
        self._size = self._coming = 0
        """The number of replicas to keep ready, and how many of them are being started."""
        self._error: Exception | None = None
        self._taking, self._changed = threading.Lock(), threading.Condition()
        self._watch: Watch | None = None

    def take(self, count: int) -> list[Replica]:
        """Return ``count`` replicas, first those in use; missing ones are started in parallel.

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
        """Start stopped ``replicas`` again and add them to ``taken``; drop those that fail to start."""
        errors: list[BaseException | None] = []
        try:
            errors += run_in_parallel([one.ensure for one in replicas])
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
        """Count replicas as used until :meth:`_release`, and add them to ``taken``; the caller holds the lock."""
        self._held.update(replicas)
        taken += replicas

    def _release(self, taken: list[Replica]) -> None:
        with self._changed:
            self._held.subtract(taken)
            self._held = +self._held

    def _release_unused(self, taken: list[Replica]) -> None:
        """Release the replicas that were ``taken``, and stop those that no environment uses."""
        self._release(taken)
        with self._changed:
            surplus = [replica for replica in set(taken) if not self._is_in_use(replica)]
        for error in run_in_parallel([partial(self._take_back, replica) for replica in surplus]):
            if isinstance(error, Exception):
                _log.warning("a replica that nobody uses cannot be ended: %s", error)

    # Replicas that are ready

    def keep_ready(self, size: int) -> None:
        """From now on keep ``size`` replicas ready, beside those in use; a thread starts or replaces them."""
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
        for error in filter(
            None, run_in_parallel([partial(self._put_to_rest, replica) for replica in surplus])
        ):
            raise error

    def wait(self, seconds: float) -> None:
        """Wait until all replicas that are to be kept ready are ready.

        Raise the error if one fails to start, and ``NotAvailable`` after ``seconds``.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) >= self._size or self._error, seconds)
            if self._error is not None:
                raise self._error
            if len(self._ready) < self._size:
                so_far = f"{len(self._ready)} of {self._size} replicas"
                raise NotAvailable(f"{so_far} are ready after {seconds:g} s")

    def _sort(self) -> None:
        """Move ready or stopped replicas that have users again to the used ones; the caller holds the lock.

        An environment that was closed has a replica again once it is reset.
        """
        for replicas in (self._ready, self._resting):
            for replica in [one for one in replicas if users_of(one.url)]:
                replicas.remove(replica)
                self._used.append(replica)

    def _take_back(self, replica: Replica) -> None:
        """Stop a replica whose last environment was closed, unless another environment uses it by now."""
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
        """Return the list that holds ``replica``, or ``None`` while it is being stopped or started."""
        return next((one for one in (self._used, self._ready, self._resting) if replica in one), None)

    def _put_to_rest(self, replica: Replica) -> None:
        try:
            replica.rest()
        finally:
            with self._changed:
                self._resting.append(replica)
                self._changed.notify_all()

    def _keep_up(self, replica: Replica) -> bool:
        """Restart a ready replica that has died; return whether it is still to be checked.

        One that was stopped meanwhile stays stopped.
        """
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
        """Start threads that add missing ready replicas; the caller holds the lock."""
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
        """Start a stopped replica again and return it; ``None`` if there is none, or it fails to start."""
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
    """The pools of this process by the ``repr`` of their start function, with a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


_pools = ProcessLocal(_Pools)


def pool_of(start: Start) -> Pool:
    """Return the pool whose replicas ``start`` starts; start functions with equal ``repr`` share one."""
    pools, key = _pools.value, repr(start)
    with pools.lock:
        if key not in pools:
            pools[key] = Pool(start)
        return pools[key]


class ReplicaUrl(str):
    """URL of a replica that is valid in one process; unpickling calls :attr:`again` for a URL in the other process."""

    again: Callable[[], str]

    @classmethod
    def of(cls, url: str, again: Callable[[], str]) -> ReplicaUrl:
        """Return a URL that unpickles as the result of ``again()``."""
        found = cls(url)
        found.again = again
        return found

    def __reduce__(self) -> Any:
        return self.again, ()


def shared_urls(
    start: Start, count: int, warm: int | None = None, again: Callable[[], str] | None = None
) -> list[str]:
    """Return the URLs of ``count`` shared replicas; missing ones are started in parallel.

    ``warm`` more are kept ready from now on; ``None`` changes nothing. Unpickling a URL calls ``again``, which
    by default shares or starts a replica of the reading process.
    """
    pool = pool_of(start)
    replicas = pool.take(count)
    if warm is not None:
        pool.keep_ready(warm)
    again = again or partial(_again, start)
    return [ReplicaUrl.of(replica.url, again) for replica in replicas]


def _again(start: Start) -> str:
    return shared_urls(start, 1)[0]
