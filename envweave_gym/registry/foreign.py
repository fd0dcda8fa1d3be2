"""Wrappers around environments of factories, of other packages' IDs and of servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import pettingzoo
from pettingzoo import AECEnv, ParallelEnv

from envweave_gym.core.arguments import call as call_constructor
from envweave_gym.core.arguments import step_limit
from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.providers.base import is_elsewhere
from envweave_gym.registry.catalog import Api
from envweave_gym.registry.entry_points import as_aec, as_gym, as_parallel, with_call_deadline
from envweave_gym.registry.make_call import (
    STACK_ARGUMENTS,
    MakeCall,
    no_api,
    refuse_for_games,
    take_group,
    vector_arguments,
)
from envweave_gym.remote import kind_of, remote_game, remote_gym, remote_vector
from envweave_gym.vector.singles import vector_of_singles
from envweave_gym.wrappers.autoreset import Autoreset
from envweave_gym.wrappers.scalar_rewards import is_scalar_reward

_OWN_ARGUMENTS = (
    *STACK_ARGUMENTS,
    "reward",
    "group",
    "autoreset_mode",
    "vectorization_mode",
    "vector_kwargs",
    "sub_batches",
)


def wrapped_gym(env_id: str, call: MakeCall) -> Any:
    """Make an environment with a Gymnasium ID of another package; its step limit stays inside our wrappers."""
    if "max_steps" in call.kwargs:
        call.kwargs["max_episode_steps"] = step_limit(env_id, call.kwargs.pop("max_steps")) or -1
    return wrapped(env_id, partial(gym.make, env_id), replace(call, api="gym"))


def wrapped_game(env_id: str, native: Api, call: MakeCall) -> Any:
    """Make a game of another package by its PettingZoo ID, and wrap it for the API that the caller asks for.

    ``native`` is the API under which that package has registered the ID, which may be another one.
    """
    refuse_for_games(env_id, call.num_envs, call.kwargs)
    make: Callable[..., Any] = pettingzoo.make
    return wrapped(env_id, partial(make, native, env_id), call)


def wrapped(name: str, factory: Callable[..., Any], call: MakeCall) -> Any:
    """Make an environment with ``factory`` and wrap it, or make a vector of such environments."""
    if is_elsewhere(name, call.backend):
        raise InvalidArgument(
            f"{name} is known to this process alone and has no backend={shown(call.backend)}; "
            "serve its factory with envweave_gym_server.create_app, or give it an ID"
        )
    if call.num_envs is None:
        return _single(name, factory, call.api, False, call.kwargs)
    how, options = vector_arguments(name, call.kwargs)
    group = take_group(name, call.kwargs)
    if how == "vector_entry_point":
        raise InvalidArgument(f"{name} has no native vector form with streams; leave vectorization_mode out")
    make = partial(_single, name, factory, call.api, True, call.kwargs)
    return vector_of_singles(name, make, call.num_envs, how or "sync", options, group)


def _single(
    name: str, factory: Callable[..., Any], api: Api | None, of_vector: bool, kwargs: dict[str, Any]
) -> Any:
    stack = {key: kwargs[key] for key in STACK_ARGUMENTS if key in kwargs}
    if is_scalar_reward(kwargs.get("reward")):  # any other is an argument of the environment's own
        stack["reward"] = kwargs["reward"]
    own = {key: value for key, value in kwargs.items() if key not in stack}
    env = call_constructor(name, factory, own, also=STACK_ARGUMENTS)
    if isinstance(env, gym.Env):
        if api not in (None, "gym"):
            raise no_api(name, api, "gym")
        return as_gym(env, name, **stack)
    if not isinstance(env, AECEnv | ParallelEnv):
        given = type(env).__name__
        raise InvalidArgument(
            f"{name}: {given} is no gymnasium.Env, pettingzoo.AECEnv or pettingzoo.ParallelEnv"
        )
    seeded = {"reproducible": stack.pop("reproducible", False)}
    refuse_for_games(name, 1 if of_vector else None, stack)
    if api == "gym":
        raise no_api(name, api, "parallel", "aec")
    return as_aec(env, name, **seeded) if api == "aec" else as_parallel(env, name, **seeded)


def on_servers(env_id: str, urls: list[str], call: MakeCall) -> Any:
    """Make an environment on the servers ``urls``: the ID ``env_id``, or if that is empty the only one they serve."""
    name, kwargs, num_envs = env_id.rpartition(":")[2] or urls[0], call.kwargs, call.num_envs
    own = {key: kwargs[key] for key in kwargs if key not in _OWN_ARGUMENTS}
    api = call.api or kind_of(env_id, urls, with_call_deadline(env_id, own))
    if api != "gym":
        refused = {key: kwargs[key] for key in ("max_steps", "autoreset") if key in kwargs}
        refuse_for_games(name, num_envs, refused)
        return remote_game(env_id, urls, api, with_call_deadline(env_id, kwargs))
    kwargs = with_call_deadline(env_id, kwargs)
    if num_envs is None:
        autoreset = kwargs.pop("autoreset", False)
        env = remote_gym(env_id, urls, kwargs)
        return Autoreset(env) if autoreset else env
    how, options = vector_arguments(name, kwargs)
    if how in ("sync", "async"):
        group = take_group(name, kwargs)
        make = partial(remote_gym, env_id, urls, kwargs)
        return vector_of_singles(name, make, num_envs, how, options, group)
    return remote_vector(env_id, urls, num_envs, options["autoreset_mode"], kwargs)
