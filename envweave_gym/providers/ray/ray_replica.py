"""Replica and provider of ``backend="ray"``: a server in a Ray actor.

An actor ends with its owner process. Ray restarts one that dies, on any node with room; the owner starts
another if Ray gives up. The URL stays the same, and episodes in an actor that died are lost.
"""

from __future__ import annotations

import logging
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from envweave_gym.core.config import named
from envweave_gym.core.faults import NotAvailable
from envweave_gym.providers.base import Provider
from envweave_gym.providers.options import check_start_timeout, numbers_in, options_in
from envweave_gym.providers.pool import shared_urls
from envweave_gym.providers.ray.actor import SERVER, Actor
from envweave_gym.providers.ray.actor_calls import actor_name
from envweave_gym.providers.ray.cluster import address_of, cluster, one_line
from envweave_gym.providers.ray.placement import Placement, check_room, no_room
from envweave_gym.providers.replica import AT_REST, Replica

NAMESPACE = "envweave"
"""Ray namespace of the actors, apart from those of other programs."""
OPTIONS = ("patience", *(field.name for field in fields(Placement)))
"""Options of ``backend="ray"``, beside ``replicas`` and ``warm``."""
_MAX_CONCURRENCY = 256
"""Number of concurrent calls of an actor; each has a thread."""
_START_TIMEOUT_S = 60.0
"""Default time until an actor must serve; Ray may install packages and clusters may add nodes meanwhile."""
_STOP_TIMEOUT_S = 2.0
"""Time for steps under way when the server is stopped."""
_PING_TIMEOUT_S = 5.0
"""Time for an actor to answer; a busy one may take longer and still counts as running."""
_NAME_RETRY_S = 0.05
_log = logging.getLogger(__name__)


class RayReplica(Replica):
    """Replica in a Ray actor."""

    def __init__(
        self,
        placement: Placement | None = None,
        *,
        token: str | None = None,
        ids: Sequence[str] = (),
        patience: float = _START_TIMEOUT_S,
    ) -> None:
        """Start the actor, and wait at most ``patience`` seconds until it serves.

        The server offers the environments ``ids``, by default all on its node. Access tokens are not checked,
        because members of a Ray cluster may run any code there.
        """
        super().__init__("an actor of Ray", token)
        self._placement, self._ids, self._patience = placement or Placement(), tuple(ids), patience
        self._known = ""
        """Id of the actor's process, as of the last call."""
        self.node = ""
        """Id of the actor's node, as of the last call."""
        self._actor: Any = None
        self._name = f"replica-{secrets.token_hex(8)}"
        self.url = f"ray+actor://{NAMESPACE}/{self._name}"
        cluster(self._placement.ray_address, may_start=True)
        self._begin()

    def _make(self) -> None:
        ray = cluster(self._placement.ray_address, may_start=True)
        check_room(ray, self._placement)
        deadline = time.monotonic() + self._patience
        self._actor = self._created(ray, deadline)
        try:
            seconds = max(deadline - time.monotonic(), _NAME_RETRY_S)
            self._known, self.node = ray.get(self._actor.ready.remote(), timeout=seconds)
        except Exception as error:
            raise self._explained(ray, error) from error

    def _created(self, ray: Any, deadline: float) -> Any:
        """Create the actor; retry until the deadline while its predecessor still holds the name."""
        kind = ray.remote(Actor).options(
            name=self._name,
            namespace=NAMESPACE,
            max_concurrency=_MAX_CONCURRENCY,
            # Ray restarts the actor on any node with room; its name, and so its URL, stays.
            max_restarts=-1,
            **self._placement.options(ray),
        )
        while True:
            try:
                return kind.remote(SERVER, self._ids, sys.path, actor_name(self.url))
            except ValueError as error:
                if "already" not in str(error) or time.monotonic() > deadline:
                    raise NotAvailable(f"an actor of Ray cannot be made: {one_line(error)}") from error
            time.sleep(_NAME_RETRY_S)

    def _explained(self, ray: Any, error: Exception) -> NotAvailable:
        """Return an error that says why the actor did not start."""
        from ray.exceptions import GetTimeoutError

        if isinstance(error, GetTimeoutError):
            return no_room(ray, self._placement, f"within {self._patience:g} s")
        cause = getattr(error, "cause", None)
        if isinstance(cause, NotAvailable):
            return NotAvailable(str(cause))
        return NotAvailable(f"an actor of Ray did not start: {one_line(error)}")

    def _ended(self) -> str | None:
        """Return why the actor has ended; ``None`` if it runs, is busy or is being restarted by Ray."""
        ray = sys.modules["ray"]
        from ray.exceptions import ActorUnavailableError, GetTimeoutError

        if self._actor is None:
            return AT_REST
        if not ray.is_initialized():
            return "this process has left its cluster"
        # A new process id means that Ray has restarted the actor, and that its sessions are lost.
        before = self._known
        try:
            self._known, self.node = ray.get(self._actor.ready.remote(), timeout=_PING_TIMEOUT_S)
        except (GetTimeoutError, ActorUnavailableError):
            return None
        except Exception as error:  # noqa: BLE001 - Ray raises many types for an actor that died
            return one_line(error)
        if self._known != before:
            self.starts += 1
            self.upkeep.has_ended("its actor, or the node of that, died")
        return None

    def answers(self, timeout: float) -> bool:
        """Return whether the actor still runs; a busy one counts as answering. ``timeout`` is not used."""
        with self._lock:  # _ended notes a changed process id
            return self._ended() is None

    def logs(self) -> str:
        """Return the output of the actor's process; empty if it does not run."""
        ray = sys.modules["ray"]
        if self._actor is None or not ray.is_initialized():
            return ""
        try:
            return ray.get(self._actor.logs.remote(), timeout=_PING_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - the output ended with the process
            return f"(the actor does not answer: {one_line(error)})"

    def _end(self) -> None:
        ray = sys.modules["ray"]
        if self._actor is not None and ray.is_initialized():
            try:
                ray.get(self._actor.stop.remote(), timeout=_STOP_TIMEOUT_S)
            except Exception as error:  # noqa: BLE001 - it is killed below
                _log.debug("the actor %s did not stop by itself: %s", self.url, one_line(error))
        self._remove()

    def _remove(self) -> None:
        ray, actor, self._actor = sys.modules["ray"], self._actor, None
        if actor is not None and ray.is_initialized():
            try:
                ray.kill(actor)
            except Exception as error:  # noqa: BLE001 - this process has left the cluster of the actor
                _log.debug("%s is no actor of this cluster: %s", self.url, one_line(error))


class RayProvider(Provider):
    """Provider that starts servers in Ray actors."""

    name = "ray"
    shares_modules = True
    survives_fork = False

    def start(self, name: str, image: str | None, options: dict[str, Any]) -> partial[RayReplica]:
        """Return a function that starts an actor on the placement in ``options``."""
        own = options_in(options, OPTIONS)
        patience = options_in(own, ("patience",))
        with named(name):
            check_start_timeout(**{"patience": _START_TIMEOUT_S, **patience})
            return partial(RayReplica, Placement(**own), **patience)

    def urls(self, name: str, image: str | None, options: dict[str, Any]) -> list[str]:
        """Return the URLs of ``replicas=`` shared actors, and keep ``warm=`` further ones ready.

        A process that unpickles a URL gets that of an actor in the same cluster if the cluster still answers, and
        starts an actor if it shares none yet.
        """
        count, warm = numbers_in(name, options)
        return _urls(None, self.start(name, image, options), count, warm)


def _urls(near: str | None, start: partial[RayReplica], count: int = 1, warm: int | None = None) -> list[str]:
    ray = cluster(start.args[0].ray_address, may_start=True, near=near)
    return shared_urls(start, count, warm, partial(_again, address_of(ray), start))


def _again(near: str, start: partial[RayReplica]) -> str:
    """Return the URL of an actor for an unpickled environment; ``start`` starts one if no replica is shared.

    The actor is in the cluster at ``near`` if that still answers.
    """
    return _urls(near, start)[0]
