"""Several servers of one provider that are kept up together, for as long as a block or a process lasts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from envweave_gym.containers.images import CORE
from envweave_gym.core.arguments import check_deadline
from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.os_support.process_local import Owner
from envweave_gym.providers.base import provider_names, provider_of
from envweave_gym.providers.options import check_number
from envweave_gym.providers.shared import ReplicaUrl
from envweave_gym.providers.together import at_once, start_all, stop_all
from envweave_gym.providers.watch import MISSES, Watch
from envweave_gym.remote.address import Address, remember_token

_PATIENCE = 2.0


class ReplicaStatus(msgspec.Struct, frozen=True):
    """How a replica is."""

    url: str
    state: Literal["healthy", "unhealthy"]
    sessions: int | None = None
    """How many it has open, where it tells."""
    restarts: int | None = None
    """How often it was started again, where that is known."""
    problem: str = ""
    """Why it cannot be started again, or does not answer, as far as that is known."""


class Fleet:
    """So many replicas that are the same, started at the same time: all, or none.

    - ``fleet.urls`` is a ``backend`` for ``make``, ``make_vec`` and PettingZoo; single environments go where
      this process has fewest, the rows of a vector are spread over all.
    - A thread looks after them. One that died, or has not answered for long, is replaced behind its URL: what
      was played there is a fault, what begins later works.
    - They end with the block, with :meth:`close` or with the process. What is killed leaves nothing that the
      next start does not sweep.
    - Pickled it is the addresses, and the token they ask for: a :class:`KnownFleet`, which ends nothing. ::

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
        """``ids`` is what they serve (all they have), ``token`` what they ask for (one that is made up).

        There is a check ``check_every`` so many seconds, by default 1, and 10 of Pods; who leaves ``misses``
        unanswered is replaced.
        ``options`` are those of the provider, like ``image="envweave-echo"`` and ``memory="512m"``.
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
        start = provider.start(self.name, CORE, options)
        if options:
            raise InvalidArgument(f"{self.name} takes no option {shown(next(iter(options)))}")
        self.backend, self._owner = provider.name, Owner()
        self._token = token or secrets.token_urlsafe(32)
        served = {"ids": tuple(ids)} if ids else {}
        self._replicas = start_all([partial(start, token=self._token, **served)] * replicas)
        self._watch = Watch(lambda: self._replicas, every=check_every, misses=misses)

    @property
    def urls(self) -> list[str]:
        """Where they are; none once it is closed."""
        return [_known_url(replica.url, self._token) for replica in self._replicas]

    @property
    def restarts(self) -> list[int]:
        """How often each was started again."""
        return [replica.starts - 1 for replica in self._replicas]

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with those that could not be started again, by URL."""
        return self._watch.problems

    def status(self) -> list[ReplicaStatus]:
        """How each of them is."""
        told: list[ReplicaStatus] = []
        for replica, found in zip(self._replicas, statuses(self.urls, self._token), strict=True):
            problem = self.problems.get(replica.url, found.problem)
            state = "unhealthy" if problem else found.state
            told.append(ReplicaStatus(replica.url, state, found.sessions, replica.starts - 1, problem))
        return told

    def logs(self) -> dict[str, str]:
        """What each of them has written since it was started, by URL."""
        return {replica.url: replica.logs() for replica in self._replicas}

    def close(self) -> None:
        """End all of them."""
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
    """A fleet that another process keeps up: its addresses, and the token to use them."""

    def __init__(self, urls: Sequence[str], token: str) -> None:
        self._urls, self._token = list(urls), token
        self.urls: list[str] = [_known_url(url, token) for url in urls]
        """Where its replicas are."""

    def status(self) -> list[ReplicaStatus]:
        """How each of them is, as far as they tell."""
        return statuses(self.urls, self._token)

    def close(self) -> None:
        """Leave it: whoever has started it ends it."""

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
    """The URL of a replica, which takes its token along when it is pickled."""
    remember_token(url, token)
    return ReplicaUrl.of(url, partial(_known_url, url, token))


def statuses(urls: Sequence[str], token: str | None) -> list[ReplicaStatus]:
    """How each of several servers is, all asked at the same time."""
    told = at_once([partial(_status, str(url), token) for url in urls])
    return [one if isinstance(one, ReplicaStatus) else _raised(one) for one in told]


def _status(url: str, token: str | None) -> ReplicaStatus:
    if token is not None:
        remember_token(url, token)
    connector, deadline = Address(url).connector(), time.monotonic() + _PATIENCE
    try:
        if not connector.is_healthy(deadline):
            return ReplicaStatus(url, "unhealthy")
        return ReplicaStatus(url, "healthy", connector.count_sessions(deadline))
    except (OSError, NotAvailable) as error:
        return ReplicaStatus(url, "unhealthy", problem=str(error))


def _raised(error: Any) -> Any:
    raise error


def _check_ids(name: str, ids: Any) -> None:
    listed = isinstance(ids, Sequence) and not isinstance(ids, str)
    if not listed or not all(isinstance(one, str) and one for one in ids):
        raise InvalidArgument(f"{name}: ids={shown(ids)} is no list of IDs")
