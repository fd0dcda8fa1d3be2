"""Protocols for optional methods of environments, and functions that find them under any wrappers.

An environment with state to show defines ``episode_state``, which :func:`state_of` calls. An environment whose
actions can be named in words defines ``parse_action`` (see :mod:`envweave_gym.core.reply_parsing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from envweave_gym.core.faults import InvalidArgument, shown

AGENT = "agent"
"""The name of the only agent of a Gymnasium environment."""


@runtime_checkable
class HasEpisodeState(Protocol):
    """An environment that adds fields of its own to :func:`state_of`."""

    def episode_state(self) -> dict[str, Any]:
        """Return the fields, as JSON."""
        ...


@runtime_checkable
class ParsesActions(Protocol):
    """An environment that parses a language model's reply by rules of its own."""

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """Return the action that ``text`` means; raise ``ValueError`` if it means none."""
        ...


def layers(env: Any) -> Iterator[Any]:
    """Yield ``env`` and every environment that it wraps, outermost first."""
    while env is not None:
        yield env
        if env is getattr(env, "unwrapped", env):
            return
        inner = vars(env).get("env")
        env = inner if inner is not None else vars(env).get("aec_env")


def name_of(env: Any) -> str:
    """Return the name of an environment for errors: its ID, the name given to its ``RequestStream``, or its class."""
    env_id = getattr(getattr(env, "spec", None), "id", None)
    if env_id is not None:
        return env_id
    for layer in layers(env):
        name = vars(layer).get("name")
        if isinstance(name, str):
            return name if "://" in name else name.rpartition(":")[2]  # without the module of module:ID
    core = env.unwrapped
    return type(core).__name__ if isinstance(core, gym.Env | VectorEnv) else str(core)


def no_agent(name: str, given: Any, known: Iterable[str]) -> str:
    """Return the error text for an unknown agent, with the agents that exist.

    ``name`` is the name of the game, ``given`` the unknown agent, and ``known`` are its agents.
    """
    return f"{name}: {shown(given)} is no agent; there are {', '.join(map(repr, known))}"


def check_agent(name: str, env: Any, agent: Any) -> None:
    """Raise ``InvalidArgument`` for an unknown agent, if the game lists its ``possible_agents``."""
    known = getattr(env, "possible_agents", None)
    if known is not None and agent not in known:
        raise InvalidArgument(no_agent(name, agent, known))


def state_of(env: Any) -> Any:
    """Return the state of the running episode: ``episode``, ``step_count`` and the environment's own fields.

    The result is a dict; for a vector environment, a tuple with a dict for each row.
    """
    require_env("state_of", env)
    for layer in layers(env):
        if hasattr(type(layer), "stream_state"):
            return layer.stream_state()
        if isinstance(layer, SyncVectorEnv | AsyncVectorEnv) and all(
            layer.call("has_wrapper_attr", "stream_state")
        ):
            return layer.call("stream_state")
    one = "each of its environments" if isinstance(env, VectorEnv) else "it"
    raise InvalidArgument(
        f"state_of({name_of(env)}): it has no stream that counts episodes; make it with envweave_gym.make, "
        f"or wrap {one} in envweave_gym.wrappers.RequestStream"
    )


def require_env(function: str, env: Any) -> None:
    """Raise ``InvalidArgument`` for a value that is no environment; ``function`` is the caller, for the error."""
    if not hasattr(env, "unwrapped"):
        raise InvalidArgument(f"{function}({shown(env)}): that is no environment of Gymnasium or PettingZoo")


def own_state(core: Any) -> dict[str, Any]:
    """Return the ``episode_state`` of an unwrapped environment, or an empty dict if it has none."""
    return core.episode_state() if isinstance(core, HasEpisodeState) else {}
