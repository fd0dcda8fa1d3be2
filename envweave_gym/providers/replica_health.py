"""Thread that checks the health of replicas, restarts those that ended and replaces those that do not answer."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence

from envweave_gym.providers.parallel import is_ending
from envweave_gym.providers.replica import Replica

ROUND_S = 1.0
"""Seconds between two rounds; a round checks the replicas that are due."""
MISSES = 5
"""Checks in a row without an answer after which a replica is replaced; a busy one misses one or two."""
_CHECK_TIMEOUT_S, _STARTUP_S = 2.0, 60.0
_RANDOM_NAME = re.compile(r"[0-9a-f]{8,}")
"""Random part of a container's or Pod's name, which differs at every attempt."""
_log = logging.getLogger(__name__)


def _keep_up(replica: Replica) -> bool:
    replica.ensure()
    return True


class Watch:
    """Health checks of replicas in a background thread, until :meth:`end`."""

    def __init__(
        self,
        replicas: Callable[[], Sequence[Replica]],
        *,
        every: float | None = None,
        misses: int = MISSES,
        keep_up: Callable[[Replica], bool] = _keep_up,
    ) -> None:
        """Start the thread.

        ``replicas`` returns the list to check and is called in each round. Each replica is checked every
        ``every`` seconds, by default :attr:`Replica.check_every`, and replaced after ``misses`` checks without
        an answer. ``keep_up`` starts a replica unless it runs, and returns whether it is still to be checked.
        """
        self._replicas, self._most, self._keep_up = replicas, misses, keep_up
        self._every = every
        self._next: dict[str, float] = {}
        """Time of the next check of each replica, by URL."""
        self._misses: dict[str, int] = {}
        self._starting: dict[str, tuple[int, float]] = {}
        """By URL: a replica's number of starts, and until when it may be silent after the last one."""
        self.problems: dict[str, str] = {}
        """Error messages of replicas that could not be started again, by URL."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="health of replicas", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop the checks, without waiting for a replica that is being started."""
        self._is_over.set()

    def wait(self, seconds: float) -> None:
        """Wait at most ``seconds`` until the thread has ended; call :meth:`end` first."""
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _look(self) -> None:
        while not self._is_over.wait(self._every or ROUND_S):
            for replica in self._replicas():
                if self._is_over.is_set():
                    return
                if self._every or time.monotonic() >= self._next.get(replica.url, 0.0):
                    # Half a round less: a round that begins early by a moment must not skip the check.
                    self._next[replica.url] = time.monotonic() + replica.check_every - ROUND_S / 2
                    self._check(replica)

    def _check(self, replica: Replica) -> None:
        url = replica.url
        self._starting.setdefault(url, (replica.starts, 0.0))
        try:
            if replica.answers(_CHECK_TIMEOUT_S):
                self._misses[url], self._starting[url] = 0, (replica.starts, 0.0)
            elif not self._keep_up(replica):
                return
            elif not self._is_starting(replica):
                self._misses[url] = self._misses.get(url, 0) + 1
            if self._misses.get(url, 0) >= self._most:
                _log.warning("%s has not answered %d times and is replaced", url, self._most)
                self._misses[url] = 0
                replica.upkeep.has_ended(f"it was replaced, as it had not answered {self._most} times")
                replica.rest()
                self._keep_up(replica)
            self.problems.pop(url, None)
        except Exception as error:  # noqa: BLE001 - its engine or cluster may be gone too, and come back
            before, self.problems[url] = self.problems.get(url, ""), str(error)
            is_new = _RANDOM_NAME.sub("", before) != _RANDOM_NAME.sub("", str(error))
            if is_new and not self._is_over.is_set() and not is_ending():
                _log.warning("%s cannot be started again: %s", url, error)

    def _is_starting(self, replica: Replica) -> bool:
        """Return whether a replica was started less than a minute ago and has not answered since."""
        starts, until = self._starting[replica.url]
        if starts != replica.starts:
            until = time.monotonic() + _STARTUP_S
            self._starting[replica.url] = replica.starts, until
        return time.monotonic() < until
