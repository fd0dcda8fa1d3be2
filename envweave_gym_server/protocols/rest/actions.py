"""Conversion of JSON to the actions of a session, by its spaces."""

from __future__ import annotations

from functools import cache
from typing import Any

from gymnasium.spaces import Space
from gymnasium.vector.utils import batch_space

from envweave_gym.core.faults import InvalidAction, shown
from envweave_gym.wire.spaces import space_from_data
from envweave_gym_server.protocols.rest.json_values import read_json


class Actions:
    """Converter of JSON to actions of one environment, vector or game."""

    def __init__(self, name: str, description: dict[str, Any], rows: int) -> None:
        self._name = name
        self._api: str = description["api"]
        self._spaces = description.get("agents", {})
        self._own = description.get("action_space")
        self._rows = rows
        self._space_of = cache(self._find_space)

    @property
    def is_turn_based(self) -> bool:
        """Whether the agents of a game act one after the other, so that an action is read by the selected agent."""
        return self._api == "aec"

    def read(self, value: Any, selection: str | None) -> Any:
        """Return the action for the JSON ``value``; ``selection`` is the agent whose turn it is."""
        if self._api == "parallel":
            return self._joint(value)
        if self._api == "aec" and (value is None or selection is None):
            return value  # an agent that is out acts with null, and before a reset nobody may act
        return read_json(self._name, self._space_of(selection if self._api == "aec" else None), value)

    def _joint(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise InvalidAction(f"{self._name}: {shown(value)} is no object with an action for each agent")
        return {
            agent: read_json(self._name, self._space_of(agent), action) for agent, action in value.items()
        }

    def _find_space(self, agent: str | None) -> Space[Any]:
        if agent is None:
            single = space_from_data(self._own or {})
            return batch_space(single, self._rows) if self._api == "vector" else single
        if agent not in self._spaces:
            known = ", ".join(self._spaces)
            raise InvalidAction(f"{self._name}: there is no agent {shown(agent)}; there are {known}")
        return space_from_data(self._spaces[agent]["action_space"])
