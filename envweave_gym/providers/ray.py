"""A server in a Ray actor, somewhere on a cluster.

The actor is its owner's, and ends with it. One that dies is started again by Ray, wherever there is room, and
one that Ray gives up by its owner, behind the same URL; what was played in it is lost.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from envweave_gym.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.providers.placement import Placement
from envweave_gym.providers.shared import numbers_in, shared_urls
from envweave_gym.remote.address import ACTOR
from envweave_gym.remote.ray_cluster import address_of, cluster, is_own, one_line
from envweave_gym.remote.upkeep import Upkeep, keep_up

NAMESPACE = "envweave"
"""Where the actors are found by their names, apart from those of others."""
SERVER = "envweave_gym_server.actor"
"""The module that actors load, on the nodes that they are on."""
OPTIONS = ("patience", *(field.name for field in fields(Placement)))
"""What ``make`` takes beside ``backend="ray"``, ``replicas`` and ``warm``."""
_THREADS = 256
"""So many calls an actor does at once, each in a thread of its own."""
_PATIENCE = 60.0
"""So many seconds an actor may take until it serves: Ray installs what it needs, and clusters add nodes."""
_GRACE = 2.0
"""So many seconds a server has for the steps that are under way when it is stopped."""
_PING = 5.0
"""So many seconds an actor may take to say that it is there; one that is busy may take longer."""
_PAUSE = 0.05
_LOG = 64 << 10
_log = logging.getLogger(__name__)


class Actor:
    """What the actor is: the server, which this package does not know."""

    def __init__(self, server: str, ids: Sequence[str], paths: Sequence[str]) -> None:
        try:
            self._server = importlib.import_module(server).ActorServer(ids, paths)
        except ImportError as error:
            raise NotAvailable(
                f"the node has no envweave-gym that can serve ({error}); install 'envweave-gym[server]' and "
                "what the environments need there, or name it in runtime_env={'pip': […]}"
            ) from None
        node = importlib.import_module("ray").get_runtime_context().get_node_id()
        self._who = (secrets.token_hex(8), node)

    def frames(self, frame: bytes, before: Any = None) -> Any:
        """The reply to the next frame of a client, behind what tells its line."""
        return self._server.frames(frame)

    def describe(self, frame: bytes) -> bytes:
        """The frame that tells what an environment is like."""
        return self._server.describe(frame)

    def leave(self, line: bytes) -> None:
        """A client has hung up."""
        self._server.leave(line)

    def ready(self) -> tuple[str, str]:
        """Which of the processes this is that have been the actor, and the node that it is on."""
        return self._who

    def logs(self) -> str:
        """The end of what its process has written."""
        written = b""
        for descriptor in (sys.__stdout__, sys.__stderr__):
            path = "" if descriptor is None else os.path.realpath(f"/proc/self/fd/{descriptor.fileno()}")
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    file.seek(max(os.path.getsize(path) - _LOG, 0))
                    written += file.read()
        return written.decode(errors="replace")

    def stop(self) -> None:
        """Close all environments."""
        self._server.stop()


class RayReplica:
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
        self._placement, self._ids, self._patience = placement or Placement(), tuple(ids), patience
        # the same thread may come again: collecting garbage closes environments, which may be the last ones
        self._owner, self._lock = os.getpid(), threading.RLock()
        self.starts, self._is_over, self._known = 0, False, ""
        self.node = ""
        """The id of the node that it was on when it was seen last."""
        self._actor: Any = None
        self._name = f"replica-{secrets.token_hex(8)}"
        self.url = f"{ACTOR}://{NAMESPACE}/{self._name}"
        with self._lock:
            self._start()
        atexit.register(self.stop)  # by now Ray is imported, so that it leaves the cluster only after that
        self.upkeep = Upkeep(self.ensure)
        keep_up(self.url, self.upkeep)

    def ensure(self) -> None:
        """Start it again where it is gone; one that is busy, or is being started by Ray, is left alone."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._is_over or self._is_there():
                return
            if self._actor is not None:
                _log.warning("the actor %s is started again", self.url)
            self._start()

    def _is_there(self) -> bool:
        ray = sys.modules["ray"]
        from ray.exceptions import ActorUnavailableError, GetTimeoutError

        if self._actor is None or not ray.is_initialized():
            return False
        try:
            self._met(ray.get(self._actor.ready.remote(), timeout=_PING))
        except (GetTimeoutError, ActorUnavailableError):
            return True
        except Exception as error:  # noqa: BLE001 - of an actor that is gone Ray tells in many ways
            _log.info("the actor %s is gone: %s", self.url, one_line(error))
            return False
        return True

    def _met(self, who: tuple[str, str]) -> None:
        self.starts += who[0] != self._known
        self._known, self.node = who

    def _start(self) -> None:
        ray = cluster(self._placement.ray_address, may_start=True)
        _check_room(ray, self._placement)
        deadline = time.monotonic() + self._patience
        self._actor = self._created(ray, deadline)
        try:
            self._met(ray.get(self._actor.ready.remote(), timeout=max(deadline - time.monotonic(), _PAUSE)))
        except BaseException as error:
            self._kill(ray)
            if isinstance(error, Exception):
                raise self._told(ray, error) from error
            raise

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
                return kind.remote(SERVER, self._ids, sys.path)
            except ValueError as error:
                if "already" not in str(error) or time.monotonic() > deadline:
                    raise NotAvailable(f"an actor of Ray cannot be made: {one_line(error)}") from error
            time.sleep(_PAUSE)

    def _told(self, ray: Any, error: Exception) -> NotAvailable:
        """Why it did not start."""
        from ray.exceptions import GetTimeoutError

        if isinstance(error, GetTimeoutError):
            return _no_room(ray, self._placement, f"within {self._patience:g} s")
        cause = getattr(error, "cause", None)
        if isinstance(cause, NotAvailable):
            return NotAvailable(str(cause))
        return NotAvailable(f"an actor of Ray did not start: {one_line(error)}")

    def logs(self) -> str:
        """What the actor's process has written, where it is there."""
        ray = sys.modules["ray"]
        if self._actor is None or not ray.is_initialized():
            return ""
        try:
            return ray.get(self._actor.logs.remote(), timeout=_PING)
        except Exception as error:  # noqa: BLE001 - it is gone, and so are its words
            return f"(the actor does not tell: {one_line(error)})"

    def stop(self) -> None:
        """End it for good."""
        if os.getpid() == self._owner:
            self._is_over = True
            keep_up(self.url, None)
            self.rest()
            atexit.unregister(self.stop)

    def rest(self) -> None:
        """End it with all its environments; the next connection starts another."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            ray = sys.modules["ray"]
            if self._actor is not None and ray.is_initialized():
                try:
                    ray.get(self._actor.stop.remote(), timeout=_GRACE)
                except Exception as error:  # noqa: BLE001 - it is killed all the same
                    _log.debug("the actor %s did not stop by itself: %s", self.url, one_line(error))
            self._kill(ray)

    def _kill(self, ray: Any) -> None:
        actor, self._actor = self._actor, None
        if actor is not None and ray.is_initialized():
            try:
                ray.kill(actor)
            except Exception as error:  # noqa: BLE001 - it was in a cluster that this process has left
                _log.debug("%s is no actor of this cluster: %s", self.url, one_line(error))


def _check_room(ray: Any, placement: Placement) -> None:
    """Refuse what no node has, where nobody adds one."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = placement.wanted().items()
    if is_own(ray) and not any(all(node.get(name, 0) >= most for name, most in wanted) for node in nodes):
        raise _no_room(ray, placement, "ever")


def _no_room(ray: Any, placement: Placement, when: str) -> NotAvailable:
    def told(amounts: dict[str, float]) -> str:
        known = {name: f"{amount:g}" for name, amount in sorted(amounts.items()) if "node:" not in name}
        known = {name: amount for name, amount in known.items() if "memory" not in name}
        return ", ".join(f"{amount} {name}" for name, amount in known.items()) or "nothing"

    wanted = told(placement.wanted())
    has, free = told(ray.cluster_resources()), told(ray.available_resources())
    return NotAvailable(
        f"an actor of backend='ray' asks for {wanted} on one node and finds no room {when}; the cluster has "
        f"{has}, and of that {free} are free: "
        "ask for less, or add a node"
    )


# What asks for it


def ray_urls(name: str, image: str | None, kwargs: dict[str, Any]) -> list[str]:
    """The URLs of actors that are shared, whose options are taken out of ``kwargs``; they are in no image."""
    count, warm = numbers_in(name, kwargs)
    return _urls(ray_start(name, image, kwargs), count, warm)


def ray_start(name: str, image: str | None, kwargs: dict[str, Any]) -> partial[RayReplica]:
    """What starts an actor, whose options are taken out of ``kwargs``."""
    options = {key: kwargs.pop(key) for key in OPTIONS if key in kwargs}
    patience = {"patience": options.pop("patience")} if "patience" in options else {}
    try:
        _check_patience(**patience)
        return partial(RayReplica, Placement(**options), **patience)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from None


def _check_patience(patience: Any = _PATIENCE) -> None:
    if type(patience) not in (int, float) or not 0 < patience < threading.TIMEOUT_MAX:
        raise InvalidArgument(f"patience={shown(patience)} is no number of seconds above 0")


def _urls(
    start: partial[RayReplica], count: int = 1, warm: int | None = None, near: str | None = None
) -> list[str]:
    ray = cluster(start.args[0].ray_address, may_start=True, near=near)
    again = partial(_again, start, address_of(ray))
    return shared_urls(("ray", repr(start)), count, start, again, warm)


def _again(start: partial[RayReplica], near: str) -> str:
    """The URL of an actor of whoever reads a pickle, on the cluster that was at ``near`` if it still is."""
    return _urls(start, near=near)[0]
