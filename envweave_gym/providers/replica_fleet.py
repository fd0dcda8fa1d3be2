"""``Fleet``: several equal replicas that are started together, health-checked, and replaced when they fail."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from envweave_gym.containers.engine import CORE_IMAGE
from envweave_gym.core.arguments import check_deadline
from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.os_support.process_local import Owner
from envweave_gym.providers.base import provider_names, provider_of
from envweave_gym.providers.options import check_number
from envweave_gym.providers.parallel import run_in_parallel, start_all, stop_all
from envweave_gym.providers.pool import ReplicaUrl
from envweave_gym.providers.replica_health import MISSES, Watch
from envweave_gym.remote.address import Address, remember_token

_STATUS_TIMEOUT_S = 2.0


class ReplicaStatus(msgspec.Struct, frozen=True):
    """State of one replica, as of a health check now."""

    url: str
    state: Literal["healthy", "unhealthy"]
    sessions: int | None = None
    """Number of open sessions; ``None`` if the server does not report it."""
    restarts: int | None = None
    """Number of restarts; ``None`` if unknown, as for a fleet of another process."""
    problem: str = ""
    """Error message: why it does not answer or cannot be started again; empty if there is none."""


class Fleet:
    """Equal replicas of one backend, started in parallel: all of them, or none.

    - ``fleet.urls`` is a ``backend`` for ``make``, ``make_vec`` and PettingZoo. Single environments go where
      this process has fewest, and the rows of a vector are spread over all.
    - A thread checks them. One that died, or has not answered for long, is replaced behind its URL: episodes
      there end with a fault, later ones work.
    - They end with the block, with :meth:`close` or with the process. The next start removes leftovers of
      killed processes.
    - It pickles as its addresses and their token: a :class:`KnownFleet`, which ends nothing. ::

        with envweave_gym.Fleet("docker", replicas=4) as fleet:
            rows = gymnasium.make_vec("envweave/LineWorld-v0", num_envs=256, backend=fleet.urls)
    """

    def __init__(
        self,
        backend: str = "docker",
        replicas: int = 1,
        *,
        ids: Sequence[str] = (),
        token: str | None = None,
        check_every: float | None = None,
        misses: int = MISSES,
        **options: Any,
    ) -> None:
        """Start all replicas.

        The servers offer the environments ``ids``, by default all that there are. ``token`` is the clients'
        access token, by default a random one.

        Each replica is checked every ``check_every`` seconds (by default 1, and 10 for Pods), and replaced
        after ``misses`` checks without an answer. ``options`` are those of the provider, as in
        ``memory="512m"``.
        """
        self.name = f"Fleet({shown(backend)})"
        provider = provider_of(backend)
        if provider is None:
            there_are = ", ".join(provider_names())
            raise InvalidArgument(f"{self.name}: there is no such provider; there are {there_are}")
        check_number(self.name, "replicas", replicas)
        _check_ids(self.name, ids)
        if check_every is not None:
            check_deadline(self.name, "check_every", check_every)
        if type(misses) is not int or misses < 1:
            raise InvalidArgument(f"{self.name}: misses={shown(misses)} is no number of checks from 1 on")
        if not isinstance(token, str | None):
            raise InvalidArgument(f"{self.name}: token= is a text, or None for one that is made up")
        start = provider.start(self.name, CORE_IMAGE, options)
        if options:
            raise InvalidArgument(f"{self.name} takes no option {shown(next(iter(options)))}")
        self.backend, self._owner = provider.name, Owner()
        self._token = token or secrets.token_urlsafe(32)
        served = {"ids": tuple(ids)} if ids else {}
        self._replicas = start_all([partial(start, token=self._token, **served)] * replicas)
        self._watch = Watch(lambda: self._replicas, every=check_every, misses=misses)

    @property
    def urls(self) -> list[str]:
        """URLs of the replicas; an empty list after :meth:`close`."""
        return [_known_url(replica.url, self._token) for replica in self._replicas]

    @property
    def restarts(self) -> list[int]:
        """Number of restarts of each replica."""
        return [replica.starts - 1 for replica in self._replicas]

    @property
    def problems(self) -> dict[str, str]:
        """Error messages of replicas that could not be started again, by URL."""
        return self._watch.problems

    def status(self) -> list[ReplicaStatus]:
        """Check each replica now, and return their states."""
        states: list[ReplicaStatus] = []
        for replica, found in zip(self._replicas, statuses(self.urls, self._token), strict=True):
            problem = self.problems.get(replica.url, found.problem)
            state = "unhealthy" if problem else found.state
            states.append(ReplicaStatus(replica.url, state, found.sessions, replica.starts - 1, problem))
        return states

    def logs(self) -> dict[str, str]:
        """Return the output of each replica since its start, by URL."""
        return {replica.url: replica.logs() for replica in self._replicas}

    def close(self) -> None:
        """Stop all replicas; does nothing in a forked child."""
        if self._owner.is_here():
            self._watch.end()
            replicas, self._replicas = self._replicas, []
            stop_all(replicas)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._replicas)

    def __reduce__(self) -> Any:
        return KnownFleet, ([str(url) for url in self.urls], self._token)

    def __repr__(self) -> str:
        return f"<Fleet of {len(self)} x {self.backend}>"


class KnownFleet:
    """Addresses and token of a fleet that another process owns; closing it stops nothing."""

    def __init__(self, urls: Sequence[str], token: str) -> None:
        self._urls, self._token = list(urls), token
        self.urls: list[str] = [_known_url(url, token) for url in urls]
        """The URLs of the replicas."""

    def status(self) -> list[ReplicaStatus]:
        """Check each server now, and return their states, without the number of restarts."""
        return statuses(self.urls, self._token)

    def close(self) -> None:
        """Do nothing: the process that started the fleet ends it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._urls)

    def __reduce__(self) -> Any:
        return KnownFleet, (self._urls, self._token)

    def __repr__(self) -> str:
        return f"<KnownFleet of {len(self)}>"


def _known_url(url: str, token: str) -> ReplicaUrl:
    """Return the URL of a replica, which pickles together with the token; this process remembers the token."""
    remember_token(url, token)
    return ReplicaUrl.of(url, partial(_known_url, url, token))


def statuses(urls: Sequence[str], token: str | None) -> list[ReplicaStatus]:
    """Check several servers in parallel, and return their states.

    ``token`` is their access token; ``None`` uses the one that this process remembers.
    """
    states: list[ReplicaStatus] = []
    for outcome in run_in_parallel([partial(_status, str(url), token) for url in urls]):
        if isinstance(outcome, BaseException):
            raise outcome
        states.append(outcome)
    return states


def _status(url: str, token: str | None) -> ReplicaStatus:
    if token is not None:
        remember_token(url, token)
    connector, deadline = Address(url).connector(), time.monotonic() + _STATUS_TIMEOUT_S
    try:
        if not connector.is_healthy(deadline):
            return ReplicaStatus(url, "unhealthy")
        return ReplicaStatus(url, "healthy", connector.count_sessions(deadline))
    except (OSError, NotAvailable) as error:
        return ReplicaStatus(url, "unhealthy", problem=str(error))


def _check_ids(name: str, ids: Any) -> None:
    listed = isinstance(ids, Sequence) and not isinstance(ids, str)
    if not listed or not all(isinstance(one, str) and one for one in ids):
        raise InvalidArgument(f"{name}: ids={shown(ids)} is no list of IDs")
