"""What the views of one server share."""

from __future__ import annotations

import logging
from typing import Any, Protocol, cast

from flask import current_app

from envweave_gym.core.faults import AtCapacity, InvalidArgument, shown
from envweave_gym.wire.messages import Create, Refused
from envweave_gym_server.app.errors import refusal_of, status_of
from envweave_gym_server.app.logs import trace_of
from envweave_gym_server.app.metrics import Metrics
from envweave_gym_server.app.settings import Settings
from envweave_gym_server.isolation.host import Workers
from envweave_gym_server.offers.descriptions import Descriptions
from envweave_gym_server.offers.offers import Offer, Offers
from envweave_gym_server.protocols.native.websocket import Watch
from envweave_gym_server.sessions.inprocess import InProcess
from envweave_gym_server.sessions.session import Host
from envweave_gym_server.sessions.session_table import Sessions, rows_of
from envweave_gym_server.sessions.slots import Places

_log = logging.getLogger(__name__)


class Makers(Protocol):
    """Where environments are made: in this process, or in processes of their own."""

    def open(self, create: Create) -> Host:
        """The environment of a new session."""
        ...

    def describe(self, create: Create) -> dict[str, Any]:
        """What a client has to know of an environment before it makes one."""
        ...

    def close(self) -> None:
        """End what no session owns."""
        ...


class ServerState:
    """The sessions, the connections and the offers of one server."""

    def __init__(self, offers: Offers, settings: Settings) -> None:
        self.offers, self.settings = offers, settings
        self.metrics = Metrics()
        self.sessions = Sessions(
            self._open_host,
            most=settings.max_sessions,
            most_environments=settings.max_environments,
            idle_timeout=settings.idle_timeout,
            metrics=self.metrics,
            log_size=settings.log_size,
        )
        self.watch = Watch()
        self.listeners = Places(settings.max_listeners, "listeners look on; end one or come again")
        self._makers: Makers = (
            Workers(offers, settings) if settings.isolation == "process" else InProcess(offers)
        )
        self._descriptions = Descriptions(self._makers.describe, settings.max_descriptions)
        self._tell_numbers()

    def _tell_numbers(self) -> None:
        watch = self.metrics.watch
        watch("envweave_sessions", "Sessions that are open.", lambda: len(self.sessions))
        watch("envweave_sessions_most", "Sessions that may be open.", lambda: self.settings.max_sessions)
        watch("envweave_environments", "Rows of all sessions.", lambda: self.sessions.environments)
        watch(
            "envweave_environments_most",
            "Rows that all sessions may have together.",
            lambda: self.settings.max_environments,
        )
        watch("envweave_sessions_busy", "Sessions with a call under way.", lambda: self.sessions.under_way)
        watch("envweave_connections", "WebSockets that are open.", lambda: len(self.watch))
        watch("envweave_listeners", "Listeners that look on.", lambda: len(self.listeners))

    def _open_host(self, create: Create) -> Host:
        self._offer(create)
        return self._makers.open(create)

    def _offer(self, create: Create) -> Offer:
        """What is asked for, unless it is more than the server gives."""
        offer = self.offers.find(create.env_id)
        offer.check(create)
        _check_depth(create.kwargs, self.settings.deepest)
        if (rows := rows_of(create)) > self._most_rows:
            raise InvalidArgument(f"{offer.name}: num_envs={shown(rows)} is more than {self._most_rows}")
        return offer

    @property
    def _most_rows(self) -> int:
        return min(self.settings.max_rows, self.settings.max_environments)

    def description(self, create: Create) -> dict[str, Any]:
        """What a client has to know of an environment before it makes one: of a vector, one row tells it."""
        if self.sessions.stopped:
            raise AtCapacity("the server is stopping; use another")
        offer, kwargs = self._offer(create), create.kwargs
        if rows_of(create) > 1:
            kwargs = {**kwargs, "num_envs": 1}
        return self._descriptions.of(Create(offer.name, create.api, kwargs)) | {
            "env_id": offer.name,
            "max_rows": self._most_rows,
        }

    def refusal_of(self, error: Exception, number: int) -> Refused:
        """An exception as the reply to a call, in the log too where it is the server's own."""
        if status_of(error) == 500:
            _log.error("call failed", extra=trace_of(error))
        return refusal_of(error, number)

    def stop(self) -> None:
        """End all connections and sessions, each after the call that is under way, and what made them."""
        self.watch.stop()
        self.sessions.stop()
        self._makers.close()


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
