"""Session service: offers, sessions and their limits, for all protocols."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from envweave_gym.core.faults import AtCapacity, InvalidArgument, NotAvailable, shown
from envweave_gym.wire.messages import VERSION, Create, Refused
from envweave_gym_server.core.errors import refusal_of, status_of
from envweave_gym_server.core.logs import trace_of
from envweave_gym_server.core.metrics import Metrics
from envweave_gym_server.core.semaphore import Semaphore
from envweave_gym_server.core.settings import Settings
from envweave_gym_server.isolation.hosts import Host, host_factory
from envweave_gym_server.offers.descriptions import Descriptions
from envweave_gym_server.offers.offers import Offer, Offers
from envweave_gym_server.sessions.session_table import Sessions, rows_of

_log = logging.getLogger(__name__)


class SessionService:
    """Sessions and offers of one server, independent of the transport."""

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
        self.before_stop: list[Callable[[], None]] = []
        """Functions of the transports that end their connections; called before the sessions end."""
        self.listeners = Semaphore(settings.max_listeners, "listeners look on; end one or come again")
        self._hosts = host_factory(offers, settings)
        self._descriptions = Descriptions(self._hosts.describe, settings.max_descriptions)
        self._watch_numbers()

    def _watch_numbers(self) -> None:
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
        watch("envweave_listeners", "Listeners that look on.", lambda: len(self.listeners))

    def _open_host(self, create: Create) -> Host:
        self._check(create)
        return self._hosts.open(create)

    def _check(self, create: Create) -> Offer:
        """Return the offer that a create message requests; raise if its version or arguments are not allowed."""
        if create.version != VERSION:
            raise NotAvailable(
                f"the client speaks version {shown(create.version)} and the server version {VERSION} of the "
                "protocol; install the same version of envweave-gym on both sides"
            )
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
        """Return spaces and metadata of the environment that ``create`` would make; for a vector those of a row."""
        if self.sessions.stopped:
            raise AtCapacity("the server is stopping; use another")
        offer, kwargs = self._check(create), create.kwargs
        if rows_of(create) > 1:
            kwargs = {**kwargs, "num_envs": 1}
        return self._descriptions.of(Create(offer.name, create.api, kwargs)) | {
            "env_id": offer.name,
            "max_rows": self._most_rows,
        }

    def refusal_of(self, error: Exception, number: int) -> Refused:
        """Return the error reply for an exception in a call; bugs of the server are also logged."""
        if status_of(error) == 500:
            _log.error("call failed", extra=trace_of(error))
        return refusal_of(error, number)

    def stop(self) -> None:
        """End all connections and sessions, each after its running call, and the zygote."""
        for end_connections in self.before_stop:
            end_connections()
        self.sessions.stop()
        self._hosts.close()


def _check_depth(value: Any, deepest: int) -> None:
    if deepest < 0:
        raise InvalidArgument("the arguments nest too deep for this server")
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        for item in value:
            _check_depth(item, deepest - 1)
