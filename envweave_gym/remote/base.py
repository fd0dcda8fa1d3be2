"""The base class of remote environments and remote games: their constructor and description."""

from __future__ import annotations

from functools import partial
from typing import Any

from envweave_gym.core.arguments import check_reproducible
from envweave_gym.core.faults import RESET_DEADLINE_S
from envweave_gym.core.seeding import Seeds
from envweave_gym.remote.served import CALL_DEADLINE, ServedEnvironment, Spaces


class Remote:
    """Base class of an environment or a game on a server; pickles hold the arguments, not the session."""

    _api = ""
    _sends_faults = False
    """Whether the server applies ``on_fault`` and ``reset_deadline`` to its environment too."""

    def __init__(
        self,
        env_id: str,
        url: str,
        *,
        token: str | None = None,
        on_fault: str = "truncate",
        reset_deadline: float = RESET_DEADLINE_S,
        call_deadline: float = CALL_DEADLINE,
        reproducible: bool = False,
        **kwargs: Any,
    ) -> None:
        """``kwargs`` go to the environment; ``token`` is a reference, ``env:NAME`` or ``file:PATH``.

        ``reproducible=True`` seeds every reset, also of environments that could go on without a seed.
        """
        faults: dict[str, Any] = {"on_fault": on_fault, "reset_deadline": reset_deadline}
        client: dict[str, Any] = {"token": token, "call_deadline": call_deadline}
        self._make_again = partial(
            type(self), env_id, url, **client, **faults, reproducible=reproducible, **kwargs
        )
        sent = {**faults, **kwargs} if self._sends_faults else kwargs
        self._served = ServedEnvironment(env_id, url, api=self._api, kwargs=sent, **client, **faults)
        self.name = self._served.name
        check_reproducible(self.name, reproducible)
        self._served.reproducible = reproducible
        self._spaces, self._seeds = Spaces(self._served), Seeds(self.name)
        self._prepare(kwargs.get("render_mode"))

    def _prepare(self, render_mode: Any) -> None:
        """Set the attributes of the subclass; called at the end of the constructor."""

    @property
    def description(self) -> dict[str, Any]:
        """The server's description: spaces or agents, metadata, and what it supports."""
        return self._served.description

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the environment."""
        return self.description["metadata"]

    def __str__(self) -> str:
        return f"<{type(self).__name__}<{self.name} at {self._served.address.url}>>"
