"""Descriptions of environments: spaces, metadata and API, for clients that have not made one yet."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv, VectorEnv
from pettingzoo import AECEnv, ParallelEnv

from envweave_gym.core.faults import NotAvailable, shown
from envweave_gym.core.protocols import layers
from envweave_gym.vector.native import NativeVectorEnv
from envweave_gym.wire.spaces import space_to_data
from envweave_gym_server.environments.reset_options import ResetOptions
from envweave_gym_server.environments.vector_resets import goes_on


def describe(env: Any, options: ResetOptions | None = None) -> dict[str, Any]:
    """Return the description of an environment, with the reset options that clients may give."""
    described: dict[str, Any] = {
        "metadata": _plain_metadata(env) if options is None else _public_metadata(env, options),
        "render_mode": getattr(env, "render_mode", None),
        "spec": _spec_fields(env),
        "parses": any(hasattr(type(layer), "parse_action") for layer in layers(env)),
        "goes_on": goes_on(env),
    }
    if isinstance(env, VectorEnv):
        spaces = _spaces(env.single_observation_space, env.single_action_space)
        return described | spaces | {"native": isinstance(env.unwrapped, NativeVectorEnv), "api": "vector"}
    if isinstance(env, gym.Env):
        return described | _spaces(env.observation_space, env.action_space) | {"api": "gym"}
    possible = getattr(env, "possible_agents", None)
    if possible is None:
        raise NotAvailable(f"{shown(env)} cannot be served: give it possible_agents, which clients ask for")
    agents = {agent: _spaces(env.observation_space(agent), env.action_space(agent)) for agent in possible}
    described["has_state"] = type(env.unwrapped).state not in (AECEnv.state, ParallelEnv.state)
    return described | {"agents": agents, "api": "aec" if isinstance(env, AECEnv) else "parallel"}


def _spec_fields(env: Any) -> dict[str, Any]:
    """Return the fields of an environment's ``EnvSpec`` that clients copy into their own spec."""
    core = env.envs[0] if isinstance(env, SyncVectorEnv) else env
    spec = getattr(core, "spec", None)
    names = ("reward_threshold", "nondeterministic", "max_episode_steps")
    return {name: getattr(spec, name, None) for name in names}


def _spaces(observation: Any, action: Any) -> dict[str, Any]:
    return {"observation_space": space_to_data(observation), "action_space": space_to_data(action)}


def _public_metadata(env: Any, options: ResetOptions) -> dict[str, Any]:
    """Return the metadata without the render mode ``"human"``, which would open a window on the server."""
    metadata = _plain_metadata(env) | {"reset_options": options.let}
    modes = metadata.get("render_modes")
    if isinstance(modes, list | tuple):
        metadata["render_modes"] = [mode for mode in modes if mode != "human"]
    return metadata


def _plain_metadata(env: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = getattr(env, "metadata", None) or {}
    return {key: value for key, value in metadata.items() if key != "autoreset_mode"}
