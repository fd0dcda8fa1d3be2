"""What the views of one server share."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any, cast

from flask import current_app

from envweave_gym.faults import InvalidArgument
from envweave_gym.wire.messages import Create, Refused
from envweave_gym_server.errors import refusal_of, status_of
from envweave_gym_server.offers import Offers, find
from envweave_gym_server.serving import Served, describe
from envweave_gym_server.sessions import Host, Sessions
from envweave_gym_server.settings import Settings
from envweave_gym_server.stream import Watch

_MOST_DESCRIPTIONS = 1000


class ServerState:
    """The sessions, the connections and the offers of one server."""

    def __init__(self, offers: Offers, settings: Settings) -> None:
        self.offers, self.settings = offers, settings
        self.sessions = Sessions(
            self._open_host, most=settings.max_sessions, idle_timeout=settings.idle_timeout
        )
        self.watch = Watch()
        self.log = logging.getLogger("envweave_gym_server")
        self._descriptions: dict[str, dict[str, Any]] = {}
        self._describing = threading.Lock()

    def _open_host(self, create: Create) -> Host:
        return Served(self.make(create))

    def make(self, create: Create) -> Any:
        """The environment that a client asks for."""
        offer = find(self.offers, create.env_id)
        _check_depth(create.kwargs, self.settings.deepest)
        rows = create.kwargs.get("num_envs", 1)
        if isinstance(rows, int) and rows > self.settings.max_rows:
            raise InvalidArgument(f"{create.env_id}: num_envs={rows} is more than {self.settings.max_rows}")
        return offer.make(create)

    def description(self, create: Create) -> dict[str, Any]:
        """What a client has to know of an environment before it makes one."""
        key = json.dumps([create.env_id, create.api, create.kwargs], sort_keys=True, default=repr)
        with self._describing:
            known = self._descriptions.get(key)
            if known is None:
                env = self.make(create)
                try:
                    known = describe(env) | {"env_id": find(self.offers, create.env_id).name}
                finally:
                    env.close()
                if len(self._descriptions) < _MOST_DESCRIPTIONS:
                    self._descriptions[key] = known
        return known

    def refusal_of(self, error: Exception, number: int) -> Refused:
        """An exception as the reply to a call, in the log too where it is the server's own."""
        if status_of(error) == 500:
            self.log.exception("a call failed")
        return refusal_of(error, number)

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
