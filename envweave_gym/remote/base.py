"""Base class of remote environments and remote games: constructor and description."""

from __future__ import annotations

from functools import partial
from typing import Any

from envweave_gym.core.arguments import check_reproducible
from envweave_gym.core.faults import RESET_DEADLINE_S
from envweave_gym.core.seeding import Seeds
from envweave_gym.remote.served_environment import CALL_DEADLINE, ServedEnvironment, Spaces


class Remote:
    """Base class of an environment or game on a server; pickles hold the constructor arguments, not the session."""

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
        """Prepare the client; no request is sent yet.

        ``kwargs`` go to the environment's constructor on the server. ``token`` is a reference to the access token:
        ``env:NAME`` or ``file:PATH``. ``call_deadline`` and ``reset_deadline`` are in seconds.

        ``on_fault="truncate"`` ends a lost episode with ``info["fault"]``; ``"raise"`` raises its error.

        A reset without a seed gets one that this client draws. But if the environment can continue its random
        generator, the drawn seed is sent only with the first reset of a session. ``reproducible=True`` sends a seed
        with every reset, so that each episode can be played again by itself.
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
        """The server's description of the environment: spaces or agents, metadata, and supported features."""
        return self._served.description

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the environment, such as its render modes."""
        return self.description["metadata"]

    def __str__(self) -> str:
        return f"<{type(self).__name__}<{self.name} at {self._served.address.url}>>"
