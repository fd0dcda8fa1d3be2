"""A server in a Ray actor, somewhere on a cluster.

The actor is its owner's, and ends with it. One that dies is started again by Ray, wherever there is room, and
one that Ray gives up by its owner, behind the same URL; what was played in it is lost.
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

from envweave_gym.core.faults import NotAvailable
from envweave_gym.providers.base import Provider
from envweave_gym.providers.options import check_start_timeout, errors_name, numbers_in, options_in
from envweave_gym.providers.pool import shared_urls
from envweave_gym.providers.ray.placement import Placement, check_room, no_room
from envweave_gym.providers.ray.ray_actor import SERVER, Actor
from envweave_gym.providers.replica import AT_REST, Replica
from envweave_gym.remote.actors import place_in
from envweave_gym.remote.address import ACTOR
from envweave_gym.remote.ray_cluster import address_of, cluster, one_line

NAMESPACE = "envweave"
"""Where the actors are found by their names, apart from those of others."""
OPTIONS = ("patience", *(field.name for field in fields(Placement)))
"""What ``make`` takes beside ``backend="ray"``, ``replicas`` and ``warm``."""
_THREADS = 256
"""Concurrent calls of an actor, each in a thread of its own."""
_PATIENCE = 60.0
"""Seconds until an actor must serve: Ray installs packages, and clusters add nodes."""
_GRACE = 2.0
"""Seconds that steps under way may take when the server is stopped."""
_PING = 5.0
"""Seconds to wait for the answer of an actor; a busy one may take longer."""
_PAUSE = 0.05
_log = logging.getLogger(__name__)


class RayReplica(Replica):
    """One actor."""

    def __init__(
        self,
        placement: Placement | None = None,
        *,
        token: str | None = None,
        ids: Sequence[str] = (),
        patience: float = _PATIENCE,
    ) -> None:
        """Start it, and wait until it serves ``ids``, or whatever its node can make.

        It asks for no token: who is part of a cluster may do anything there.
        """
        super().__init__("an actor of Ray", token)
        self._placement, self._ids, self._patience = placement or Placement(), tuple(ids), patience
        self._known = self.node = ""
        """The id of the node that it was on when it was seen last."""
        self._actor: Any = None
        self._name = f"replica-{secrets.token_hex(8)}"
        self.url = f"{ACTOR}://{NAMESPACE}/{self._name}"
        cluster(self._placement.ray_address, may_start=True)
        self._begin()

    def _make(self) -> None:
        ray = cluster(self._placement.ray_address, may_start=True)
        check_room(ray, self._placement)
        deadline = time.monotonic() + self._patience
        self._actor = self._created(ray, deadline)
        try:
            seconds = max(deadline - time.monotonic(), _PAUSE)
            self._known, self.node = ray.get(self._actor.ready.remote(), timeout=seconds)
        except Exception as error:
            raise self._explained(ray, error) from error

    def _created(self, ray: Any, deadline: float) -> Any:
        """The actor, once nobody has its name any more."""
        kind = ray.remote(Actor).options(
            name=self._name,
            namespace=NAMESPACE,
            max_concurrency=_THREADS,
            max_restarts=-1,
            **self._placement.options(ray),
        )
        while True:
            try:
                return kind.remote(SERVER, self._ids, sys.path, place_in(self.url))
            except ValueError as error:
                if "already" not in str(error) or time.monotonic() > deadline:
                    raise NotAvailable(f"an actor of Ray cannot be made: {one_line(error)}") from error
            time.sleep(_PAUSE)

    def _explained(self, ray: Any, error: Exception) -> NotAvailable:
        """Why it did not start."""
        from ray.exceptions import GetTimeoutError

        if isinstance(error, GetTimeoutError):
            return no_room(ray, self._placement, f"within {self._patience:g} s")
        cause = getattr(error, "cause", None)
        if isinstance(cause, NotAvailable):
            return NotAvailable(str(cause))
        return NotAvailable(f"an actor of Ray did not start: {one_line(error)}")

    def _ended(self) -> str | None:
        """One that is busy, or is being started by Ray, has not."""
        ray = sys.modules["ray"]
        from ray.exceptions import ActorUnavailableError, GetTimeoutError

        if self._actor is None:
            return AT_REST
        if not ray.is_initialized():
            return "this process has left its cluster"
        before = self._known
        try:
            self._known, self.node = ray.get(self._actor.ready.remote(), timeout=_PING)
        except (GetTimeoutError, ActorUnavailableError):
            return None
        except Exception as error:  # noqa: BLE001 - of an actor that is gone Ray tells in many ways
            return one_line(error)
        if self._known != before:
            self.starts += 1
            self.upkeep.has_ended("its actor, or the node of that, died")
        return None

    def answers(self, timeout: float) -> bool:
        """One that is busy is as good."""
        with self._lock:  # it is taken down whether it is the same one still
            return self._ended() is None

    def logs(self) -> str:
        """What the actor's process has written, where it is there."""
        ray = sys.modules["ray"]
        if self._actor is None or not ray.is_initialized():
            return ""
        try:
            return ray.get(self._actor.logs.remote(), timeout=_PING)
        except Exception as error:  # noqa: BLE001 - it is gone, and so are its words
            return f"(the actor does not tell: {one_line(error)})"

    def _end(self) -> None:
        ray = sys.modules["ray"]
        if self._actor is not None and ray.is_initialized():
            try:
                ray.get(self._actor.stop.remote(), timeout=_GRACE)
            except Exception as error:  # noqa: BLE001 - it is killed all the same
                _log.debug("the actor %s did not stop by itself: %s", self.url, one_line(error))
        self._remove()

    def _remove(self) -> None:
        ray, actor, self._actor = sys.modules["ray"], self._actor, None
        if actor is not None and ray.is_initialized():
            try:
                ray.kill(actor)
            except Exception as error:  # noqa: BLE001 - it was in a cluster that this process has left
                _log.debug("%s is no actor of this cluster: %s", self.url, one_line(error))


class RayProvider(Provider):
    """Starts servers in actors, which are in no image."""

    name = "ray"
    shares_modules = True

    def start(self, name: str, image: str | None, options: dict[str, Any]) -> partial[RayReplica]:
        """A function that starts an actor."""
        own = options_in(options, OPTIONS)
        patience = options_in(own, ("patience",))
        with errors_name(name):
            check_start_timeout(**{"patience": _PATIENCE, **patience})
            return partial(RayReplica, Placement(**own), **patience)

    def urls(self, name: str, image: str | None, options: dict[str, Any]) -> list[str]:
        """The URLs of shared actors, which in pickles are on the same cluster."""
        count, warm = numbers_in(name, options)
        return _urls(None, self.start(name, image, options), count, warm)


def _urls(near: str | None, start: partial[RayReplica], count: int = 1, warm: int | None = None) -> list[str]:
    ray = cluster(start.args[0].ray_address, may_start=True, near=near)
    return shared_urls(start, count, warm, partial(_again, address_of(ray), start))


def _again(near: str, start: partial[RayReplica]) -> str:
    """The URL of an actor of whoever reads a pickle, on the cluster that was at ``near`` if it still is."""
    return _urls(near, start)[0]
