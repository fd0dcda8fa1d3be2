"""Client of environment servers: makes environments, vectors and games that run on one."""

from __future__ import annotations

import pkgutil
import random
from typing import Any, Literal

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from envweave_gym.core.arguments import check_deadline
from envweave_gym.remote.started_servers import users_of


def remote_gym(env_id: str, urls: list[str], kwargs: dict[str, Any]) -> Any:
    """Make an environment on the URL in ``urls`` with the fewest users in this process.

    The server is asked for a description at once, so that a wrong argument or an unreachable server raises
    here.
    """
    from envweave_gym.remote.env import RemoteEnv

    return _known(RemoteEnv(env_id, _one_of(urls), **kwargs))


def remote_vector(env_id: str, urls: list[str], num_envs: int, mode: Any, kwargs: dict[str, Any]) -> Any:
    """Make a vector whose ``num_envs`` rows are divided among the servers; ``mode`` is the autoreset mode."""
    from envweave_gym.remote.transports import VECTORS

    schemes = {url.partition("://")[0] for url in urls}
    own = VECTORS.get(schemes.pop()) if len(schemes) == 1 else None
    vector = pkgutil.resolve_name(own or "envweave_gym.remote.vector:RemoteVectorEnv")
    return _known(vector(env_id, urls, num_envs=num_envs, autoreset_mode=mode, **kwargs))


def remote_game(env_id: str, urls: list[str], api: Literal["aec", "parallel"], kwargs: dict[str, Any]) -> Any:
    """Make a game on the URL in ``urls`` with the fewest users in this process, for one of PettingZoo's APIs."""
    from envweave_gym.remote.games import RemoteAEC, RemoteParallel

    kind = RemoteAEC if api == "aec" else RemoteParallel
    return _known(kind(env_id, _one_of(urls), **kwargs))


def kind_of(env_id: str, urls: list[str], kwargs: dict[str, Any]) -> Any:
    """Return the API of an environment, as reported by the first server: ``"gym"``, ``"aec"`` or ``"parallel"``."""
    from envweave_gym.remote.address import Address
    from envweave_gym.remote.descriptions import create_message, describe, remote_name
    from envweave_gym.remote.served_environment import CALL_DEADLINE

    name, own = remote_name(env_id, urls[0]), {**kwargs}
    token, deadline = own.pop("token", None), own.pop("call_deadline", CALL_DEADLINE)
    check_deadline(name, "call_deadline", deadline)
    address = Address.of(name, urls[0], token)
    return describe(address, create_message(name, env_id, "", own), deadline)["api"]


def _one_of(urls: list[str]) -> str:
    """Return the URL with the fewest users in this process; ties are broken at random."""
    return min(urls, key=lambda url: (users_of(url.rstrip("/")), random.SystemRandom().random()))


def _known(env: Any) -> Any:
    try:
        described = env.description
    except BaseException:
        env.close()  # the server may have been started for this environment alone, and ends with it
        raise
    if isinstance(env, gym.Env | gym.vector.VectorEnv):
        env.spec = _spec_of(env, described)
    return env


def _one_again(env_id: str, url: str, **kwargs: Any) -> Any:
    return remote_gym(env_id, [url], kwargs)


def _rows_again(env_id: str, urls: list[str], num_envs: int, autoreset_mode: str, **kwargs: Any) -> Any:
    return remote_vector(env_id, urls, num_envs, autoreset_mode, kwargs)


def _spec_of(env: Any, described: dict[str, Any]) -> EnvSpec | None:
    """Return a spec with which ``gymnasium.make`` makes ``env`` on its server again; ``None`` for an illegal ID."""
    env_id, kwargs = described.get("env_id", env.name), env._spec_arguments()
    arguments: dict[str, Any] = {"disable_env_checker": True, "order_enforce": False, "kwargs": kwargs}
    if isinstance(env, gym.Env):
        arguments["entry_point"] = f"{__name__}:{_one_again.__name__}"
    else:
        arguments["vector_entry_point"] = f"{__name__}:{_rows_again.__name__}"
    try:
        return EnvSpec(env_id.rpartition(":")[2], **arguments, **described.get("spec", {}))
    except gym.error.Error:
        return None
