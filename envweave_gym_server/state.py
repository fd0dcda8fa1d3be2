"""What the views of one server share."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from flask import current_app

from envweave_gym.faults import (
    REFUSALS,
    AtCapacity,
    EnvironmentCrashed,
    EnvweaveError,
    InvalidArgument,
    fault_of,
    shown,
)
from envweave_gym.wire.messages import Create, Refused
from envweave_gym_server.descriptions import Descriptions
from envweave_gym_server.errors import is_exhaustion, refusal_of, status_of
from envweave_gym_server.isolation.host import Workers
from envweave_gym_server.logs import trace_of
from envweave_gym_server.metrics import Metrics
from envweave_gym_server.offers import Offer, Offers, find
from envweave_gym_server.serving import Served, describe
from envweave_gym_server.sessions import Host, Sessions
from envweave_gym_server.settings import Settings
from envweave_gym_server.stream import Watch


class ServerState:
    """The sessions, the connections and the offers of one server."""

    def __init__(self, offers: Offers, settings: Settings) -> None:
        self.offers, self.settings = offers, settings
        self.metrics = Metrics()
        self.sessions = Sessions(
            self._open_host,
            most=settings.max_sessions,
            idle_timeout=settings.idle_timeout,
            metrics=self.metrics,
            log_size=settings.log_size,
        )
        self.watch = Watch()
        self.log = logging.getLogger(__name__)
        self._workers = Workers(offers, settings) if settings.isolation == "process" else None
        self._descriptions = Descriptions(self._workers.describe if self._workers else self._describe)
        self._listeners = threading.BoundedSemaphore(settings.max_listeners)
        self._tell_numbers()

    def _tell_numbers(self) -> None:
        watch = self.metrics.watch
        watch("envweave_sessions", "Sessions that are open.", lambda: len(self.sessions))
        watch("envweave_sessions_most", "Sessions that may be open.", lambda: self.settings.max_sessions)
        watch("envweave_sessions_busy", "Sessions with a call under way.", lambda: self.sessions.under_way)
        watch("envweave_connections", "WebSockets that are open.", lambda: len(self.watch))

    def _open_host(self, create: Create) -> Host:
        if self._workers is None:
            return Served(self.make(create))
        self._offer(create)
        return self._workers.open(create)

    def _offer(self, create: Create) -> Offer:
        """What is asked for, unless it is more than the server gives."""
        offer = find(self.offers, create.env_id)
        _check_depth(create.kwargs, self.settings.deepest)
        rows = create.kwargs.get("num_envs", 1)
        if isinstance(rows, int) and rows > self.settings.max_rows:
            given = shown(rows)
            raise InvalidArgument(f"{offer.name}: num_envs={given} is more than {self.settings.max_rows}")
        return offer

    def make(self, create: Create) -> Any:
        """The environment that a client asks for."""
        offer = self._offer(create)
        try:
            return offer.make(create)
        except (*REFUSALS, EnvweaveError):
            raise
        except (Exception, SystemExit) as error:
            if is_exhaustion(error):
                raise
            raise self._crash("made", offer.name, error) from error

    def description(self, create: Create) -> dict[str, Any]:
        """What a client has to know of an environment before it makes one."""
        return self._descriptions.of(create)

    def _describe(self, create: Create) -> dict[str, Any]:
        env, name = self.make(create), find(self.offers, create.env_id).name
        try:
            return describe(env) | {"env_id": name}
        except EnvweaveError:
            raise
        except Exception as error:
            raise self._crash("described", name, error) from error
        finally:
            self._close(env, name)

    def _close(self, env: Any, name: str) -> None:
        try:
            env.close()
        except Exception as error:  # noqa: BLE001 - an environment may raise anything, also here
            self._crash("closed", name, error)

    def _crash(self, what: str, name: str, error: BaseException) -> EnvironmentCrashed:
        """Log that an environment raised where it is no episode's fault, and say so."""
        self.log.warning(f"environment not {what}", extra={"env": name, **trace_of(error)})
        return EnvironmentCrashed(f"{name} cannot be {what}: {fault_of(error).message}")

    def refusal_of(self, error: Exception, number: int) -> Refused:
        """An exception as the reply to a call, in the log too where it is the server's own."""
        if status_of(error) == 500:
            self.log.error("call failed", extra=trace_of(error))
        return refusal_of(error, number)

    @contextmanager
    def listening(self) -> Generator[None]:
        """Count one who looks on, or refuse to."""
        if not self._listeners.acquire(blocking=False):
            most = self.settings.max_listeners
            raise AtCapacity(f"{most} of {most} listeners look on; end one or come again")
        try:
            yield
        finally:
            self._listeners.release()

    def stop(self) -> None:
        """End all connections and sessions, each after the call that is under way."""
        self.watch.stop()
        self.sessions.stop()


def _check_depth(value: Any, deepest: int) -> None:
    if deepest < 0:
        raise InvalidArgument("the arguments nest too deep for this server")
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        for item in value:
            _check_depth(item, deepest - 1)


def state() -> ServerState:
    """The state of the server that the current request is for."""
    return cast("ServerState", current_app.extensions["envweave"])
