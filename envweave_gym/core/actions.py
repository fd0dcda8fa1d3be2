"""Checks an action against its space and converts it to JSON for the events of a step, in one pass.

``space.contains`` alone costs more than a step of a small environment. :func:`admission` returns a faster closure
for a space, which does both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import index
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete, Space

from envweave_gym.core.faults import InvalidAction, shown
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.protocols import no_agent
from envweave_gym.core.spaces import Unicode

REFUSED: Any = object()
"""Sentinel that an :data:`Admission` returns for a value that is not in the space."""

Admission = Callable[[Any], Any]


"""Function from a value to its JSON form, or to :data:`REFUSED` if the value is not in the space."""


def admission(space: Space[Any]) -> Admission:
    """Return a function that converts a member of ``space`` to JSON, and returns :data:`REFUSED` for other values."""
    make = _ADMISSIONS.get(type(space))
    return partial(_any_space, space) if make is None else make(space)


def _any_space(space: Space[Any], x: Any) -> Any:
    return jsonable(x) if contains(space, x) else REFUSED


def contains(space: Space[Any], x: Any) -> bool:
    """Return whether ``x`` is a member of ``space``; ``False`` if its type makes the space raise."""
    try:
        return space.contains(x)
    except (TypeError, ValueError, OverflowError):  # some spaces raise these for other types
        return False


def _discrete(space: Any) -> Admission:
    low, high, int64 = int(space.start), int(space.start + space.n), np.int64

    # Plain ints skip the call of ``space.contains``: this runs at every step.
    def admit(x: Any) -> Any:
        if type(x) is not int:
            if type(x) is not int64 and not contains(space, x):
                return REFUSED
            x = index(x)
        return x if low <= x < high else REFUSED

    return admit


def _unicode(space: Any) -> Admission:
    shortest, longest = space.min_length, space.max_length

    def admit(x: Any) -> Any:
        if type(x) is not str:
            return str.__str__(x) if contains(space, x) else REFUSED  # a plain str, whatever subclass it was
        try:
            x.encode()
        except UnicodeEncodeError:  # a lone surrogate
            return REFUSED
        return x if shortest <= len(x) <= longest else REFUSED

    return admit


def _dict(space: Any) -> Admission:
    members = [(key, str(key), admission(inner)) for key, inner in space.spaces.items()]
    size = len(members)

    def admit(x: Any) -> Any:
        if type(x) is not dict:
            return _any_space(space, x)
        if len(x) != size:
            return REFUSED
        admitted: dict[str, Any] = {}
        for key, name, admit_member in members:
            try:
                member = x[key]
            except KeyError:
                return REFUSED
            admitted[name] = member = admit_member(member)
            if member is REFUSED:
                return REFUSED
        return admitted

    return admit


# By exact type, as a subclass may override contains().
_ADMISSIONS: dict[type, Callable[[Any], Admission]] = {Discrete: _discrete, Unicode: _unicode, Dict: _dict}


class AgentActions:
    """Checks the actions of a game's agents, each against the agent's own space.

    Action masks are not checked: the game itself decides about masked actions.
    """

    def __init__(self, name: str) -> None:
        """Prepare the checks; ``name`` is the name of the game in errors."""
        self._name = name
        self._admissions: dict[str, tuple[Space[Any], Admission]] = {}

    def admit(self, env: Any, agent: str, action: Any) -> Any:
        """Convert an action to JSON; raise :class:`InvalidAction` if it is not in the agent's action space."""
        space = env.action_space(agent)
        known = self._admissions.get(agent)
        if known is None or known[0] is not space:  # an episode may have spaces of its own
            known = self._admissions[agent] = space, admission(space)
        admit = known[1]
        admitted = admit(action)
        if admitted is REFUSED:
            raise InvalidAction(f"{self._name}: action {shown(action)} of {agent} is not in {space}")
        return admitted

    def admit_all(self, env: Any, agents: Iterable[str], actions: Any) -> dict[str, Any]:
        """Convert the actions of ``agents`` to JSON, by agent; ignore those of other agents of the game.

        Raise :class:`InvalidAction` for a missing or invalid action, and for an agent that the game does not have.
        """
        if not isinstance(actions, Mapping):
            raise InvalidAction(
                f"{self._name}: step() takes a dict of actions by agent, not {shown(actions)}"
            )
        known = getattr(env, "possible_agents", None) or env.agents
        for agent in actions:
            if agent not in known:
                raise InvalidAction(no_agent(self._name, agent, known))
        admitted: dict[str, Any] = {}
        for agent in agents:
            if agent not in actions:
                raise InvalidAction(f"{self._name}: {agent} must act, but its action is missing; give one")
            admitted[agent] = self.admit(env, agent, actions[agent])
        return admitted

    def __getstate__(self) -> dict[str, Any]:
        return {"_name": self._name, "_admissions": {}}  # closures do not pickle
