"""Replicas that are looked after: one thread asks how they are, and replaces those that do not answer."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence

from envweave_gym.providers.replica import Replica
from envweave_gym.providers.together import is_ending

EVERY = 1.0
"""So many seconds pass between two rounds, in which those are looked at whose turn it is."""
MISSES = 5
"""So many checks in a row without an answer are too many: who is busy misses one, who hangs all."""
_PATIENCE, _YOUTH = 2.0, 60.0
_NUMBER = re.compile(r"[0-9a-f]{8,}")
"""What the name of a container or a Pod has, which is another at every attempt."""
_log = logging.getLogger(__name__)


def _keep_up(replica: Replica) -> bool:
    replica.ensure()
    return True


class Watch:
    """Looks after replicas until it is ended."""

    def __init__(
        self,
        replicas: Callable[[], Sequence[Replica]],
        *,
        every: float | None = None,
        misses: int = MISSES,
        keep_up: Callable[[Replica], bool] = _keep_up,
    ) -> None:
        """``replicas`` tells in each round which they are.

        Each is looked at ``every`` so many seconds, or as often as is good for one of its kind.
        ``keep_up`` starts one unless it runs, and tells whether it is still one of them.
        """
        self._replicas, self._most, self._keep_up = replicas, misses, keep_up
        self._every = every
        self._next: dict[str, float] = {}
        """When each is looked at again."""
        self._misses: dict[str, int] = {}
        self._young: dict[str, tuple[int, float]] = {}
        """Until when a replica may be silent since it was started so many times."""
        self.problems: dict[str, str] = {}
        """What is wrong with those that could not be started again, by URL."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="health of replicas", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Look no more; a replica that is just being started is not waited for."""
        self._is_over.set()

    def wait(self, seconds: float) -> None:
        """Wait for the end of the last round, so many seconds at most."""
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _look(self) -> None:
        while not self._is_over.wait(self._every or EVERY):
            for replica in self._replicas():
                if self._is_over.is_set():
                    return
                if self._every or time.monotonic() >= self._next.get(replica.url, 0.0):
                    self._next[replica.url] = time.monotonic() + replica.check_every - EVERY / 2
                    self._check(replica)

    def _check(self, replica: Replica) -> None:
        url = replica.url
        self._young.setdefault(url, (replica.starts, 0.0))
        try:
            if replica.answers(_PATIENCE):
                self._misses[url], self._young[url] = 0, (replica.starts, 0.0)
            elif not self._keep_up(replica):
                return
            elif not self._is_young(replica):
                self._misses[url] = self._misses.get(url, 0) + 1
            if self._misses.get(url, 0) >= self._most:
                _log.warning("%s has not answered %d times and is replaced", url, self._most)
                self._misses[url] = 0
                replica.upkeep.has_ended(f"it was replaced, as it had not answered {self._most} times")
                replica.rest()
                self._keep_up(replica)
            self.problems.pop(url, None)
        except Exception as error:  # noqa: BLE001 - what provides it may be gone too, and come back
            before, self.problems[url] = self.problems.get(url, ""), str(error)
            is_new = _NUMBER.sub("", before) != _NUMBER.sub("", str(error))
            if is_new and not self._is_over.is_set() and not is_ending():
                _log.warning("%s cannot be started again: %s", url, error)

    def _is_young(self, replica: Replica) -> bool:
        """Whether it was started only just now, and has not answered yet."""
        starts, until = self._young[replica.url]
        if starts != replica.starts:
            until = time.monotonic() + _YOUTH
            self._young[replica.url] = replica.starts, until
        return time.monotonic() < until
