"""Environments from elsewhere, as a factory or a foreign ID builds them, with our stack around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import pettingzoo
from gymnasium.vector import AutoresetMode
from pettingzoo import AECEnv, ParallelEnv

from envweave_gym.core.arguments import autoreset_mode_of, call, step_limit
from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.registry.catalog import Api
from envweave_gym.registry.launch import as_aec, as_gym, as_parallel
from envweave_gym.remote import kind_of, remote_game, remote_gym, remote_vector
from envweave_gym.vector.singles import vector_of_singles
from envweave_gym.wrappers.autoreset import Autoreset
from envweave_gym.wrappers.scalar_rewards import is_scalar_reward

_STACK = ("max_steps", "autoreset", "on_fault", "reset_deadline", "reproducible")
_OURS = (*_STACK, "reward", "group", "autoreset_mode", "vectorization_mode", "vector_kwargs", "sub_batches")
_WAYS = ("sync", "async", "vector_entry_point")


def wrapped_gym(env_id: str, num_envs: int | None, kwargs: dict[str, Any]) -> Any:
    """A Gymnasium ID, with its own ``TimeLimit`` inside the stack."""
    if "max_steps" in kwargs:
        kwargs["max_episode_steps"] = step_limit(env_id, kwargs.pop("max_steps")) or -1
    return wrapped(env_id, partial(gym.make, env_id), "gym", num_envs, kwargs)


def wrapped_game(
    env_id: str, native: str, api: Api | None, num_envs: int | None, kwargs: dict[str, Any]
) -> Any:
    """A PettingZoo ID, registered for the ``native`` API, as the one asked for."""
    _refuse_for_games(env_id, num_envs, kwargs)
    make: Callable[..., Any] = pettingzoo.make
    return wrapped(env_id, partial(make, native, env_id), api, None, kwargs)


def wrapped(
    name: str, factory: Callable[..., Any], api: Api | None, num_envs: int | None, kwargs: dict[str, Any]
) -> Any:
    """Whatever ``factory`` builds, or a vector of that."""
    if num_envs is None:
        return _one(name, factory, api, False, kwargs)
    how, options = vector_arguments(name, kwargs)
    group = _group_in(name, kwargs)
    if how == "vector_entry_point":
        raise InvalidArgument(
            f"{name} has no native vector form that tells streams; leave vectorization_mode out"
        )
    make = partial(_one, name, factory, api, True, kwargs)
    return vector_of_singles(name, make, num_envs, how or "sync", options, group)


def _one(
    name: str, factory: Callable[..., Any], api: Api | None, of_vector: bool, kwargs: dict[str, Any]
) -> Any:
    stack = {key: kwargs[key] for key in _STACK if key in kwargs}
    if is_scalar_reward(kwargs.get("reward")):  # any other is an argument of the environment's own
        stack["reward"] = kwargs["reward"]
    own = {key: value for key, value in kwargs.items() if key not in stack}
    env = call(name, factory, own, also=_STACK)
    if isinstance(env, gym.Env):
        if api not in (None, "gym"):
            raise InvalidArgument(no_api(name, api, "gym"))
        return as_gym(env, name, **stack)
    if not isinstance(env, AECEnv | ParallelEnv):
        given = type(env).__name__
        raise InvalidArgument(
            f"{name}: {given} is no gymnasium.Env, pettingzoo.AECEnv or pettingzoo.ParallelEnv"
        )
    seeded = {"reproducible": stack.pop("reproducible", False)}
    _refuse_for_games(name, 1 if of_vector else None, stack)
    if api == "gym":
        raise InvalidArgument(no_api(name, api, "parallel", "aec"))
    return as_aec(env, name, **seeded) if api == "aec" else as_parallel(env, name, **seeded)


def elsewhere(
    env_id: str, urls: list[str], api: Api | None, num_envs: int | None, kwargs: dict[str, Any]
) -> Any:
    """What servers have under this name, or the only thing that one has."""
    name = env_id.rpartition(":")[2] or urls[0]
    known = api or kind_of(env_id, urls, {key: kwargs[key] for key in kwargs if key not in _OURS})
    if known != "gym":
        refused = {key: kwargs[key] for key in ("max_steps", "autoreset") if key in kwargs}
        _refuse_for_games(name, num_envs, refused)
        return remote_game(env_id, urls, known, kwargs)
    if num_envs is None:
        autoreset = kwargs.pop("autoreset", False)
        env = remote_gym(env_id, urls, kwargs)
        return Autoreset(env) if autoreset else env
    how, options = vector_arguments(name, kwargs)
    if how in ("sync", "async"):
        group = _group_in(name, kwargs)
        make = partial(remote_gym, env_id, urls, kwargs)
        return vector_of_singles(name, make, num_envs, how, options, group)
    return remote_vector(env_id, urls, num_envs, options["autoreset_mode"], kwargs)


def _group_in(name: str, kwargs: dict[str, Any]) -> int | None:
    """Take ``group`` out of ``kwargs``; its rows play the same episodes, so their resets must carry seeds."""
    group = kwargs.pop("group", None)
    if group not in (None, 1) and not kwargs.setdefault("reproducible", True):
        raise InvalidArgument(
            f"{name}: group={shown(group)} needs seeds at every reset; leave reproducible=False out"
        )
    return group


def no_api(name: str, api: Api | None, *kinds: str) -> str:
    """The sentence about an API that an environment does not have."""
    return f"{name} has no api={shown(api)}; it has {' and '.join(map(repr, kinds))}"


def vector_arguments(name: str, kwargs: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Take out of ``kwargs`` how a vector is made: Gymnasium's word for it, and its arguments."""
    mode = autoreset_mode_of(name, kwargs.pop("autoreset_mode", "NextStep"))
    if kwargs.pop("autoreset", False) and mode is AutoresetMode.DISABLED:
        raise InvalidArgument(f"{name}: autoreset=True and autoreset_mode='Disabled' contradict each other")
    how = kwargs.pop("vectorization_mode", None)
    if how is not None and how not in _WAYS:
        there_are = ", ".join(map(repr, _WAYS))
        raise InvalidArgument(f"{name}: vectorization_mode={shown(how)} is unknown; there are {there_are}")
    own = kwargs.pop("vector_kwargs", {})
    if not isinstance(own, Mapping):
        raise InvalidArgument(f"{name}: vector_kwargs={shown(own)} is no dict of arguments")
    if own.keys() - {"autoreset_mode"} and how not in ("sync", "async"):
        raise InvalidArgument(
            f"{name}: vector_kwargs= go to Gymnasium's own vectors; give vectorization_mode='sync' or "
            "'async' too"
        )
    return how, {"autoreset_mode": mode.value, **own}


def _refuse_for_games(name: str, num_envs: int | None, kwargs: dict[str, Any]) -> None:
    """What only Gymnasium environments take."""
    given = ["num_envs"] * (num_envs is not None)
    given += [key for key in _STACK if key in kwargs and key != "reproducible"]
    if given:
        refused = " and no ".join(given)
        raise InvalidArgument(f"{name} is a multi-agent environment; it takes no {refused}, leave that out")
