"""Infos of numbers alone, for trainers that choke on objects and strings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv, VectorWrapper
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.wrappers import BaseParallelWrapper, BaseWrapper

from envweave_gym.core.arrays import foreign_array
from envweave_gym.episode.stream import trainable


def numbers_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of ``info`` that are numbers, booleans or arrays of them, and
    :func:`envweave_gym.trainable`.

    ``trainable`` takes the place of the stream and the fault, which are no numbers: without it a trainer
    would take a lost episode for a bad one.
    """
    values = {key: _own_array(value) for key, value in info.items()}
    numbers = {key: value for key, value in values.items() if _is_numeric(value)}
    return {**numbers, "trainable": trainable(info)}


def _own_array(value: Any) -> Any:
    """``value``, or an array of another library as NumPy's, as it arrives from a server."""
    array = None if isinstance(value, np.ndarray | np.generic) else foreign_array(value)
    return value if array is None else array[()]


def _is_numeric(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    return isinstance(value, bool | int | float | np.number | np.bool_)


def _numbers_by_agent(infos: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {agent: numbers_of(info) for agent, info in infos.items()}


def _numbers_by_row(infos: Mapping[str, Any], num_envs: int) -> dict[str, Any]:
    """The numbers of a vector info with their masks; ``final_obs`` stays, since it holds observations."""
    kept = _numeric_columns(infos)
    kept["trainable"] = np.full(num_envs, trainable(infos))
    kept["_trainable"] = np.ones(num_envs, dtype=np.bool_)
    return kept


def _numeric_columns(infos: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, column in infos.items():
        if isinstance(column, Mapping):
            column = _numeric_columns(column)
        elif key.startswith("_") or not (key == "final_obs" or _is_numeric(column)):
            continue
        kept[key] = column
        if f"_{key}" in infos:
            kept[f"_{key}"] = infos[f"_{key}"]
    return kept


class NumericInfo(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Strips from infos whatever is not a number; ``NumericInfo(env)`` takes all four kinds of environment.

    A Gymnasium environment becomes a ``NumericInfo``; a vector environment, an AEC and a parallel environment
    become the matching wrapper of their own kind.
    """

    def __new__(cls, env: Any) -> Any:
        """Pick the wrapper that fits the kind of ``env``."""
        for kind, wrapper in _BY_KIND.items():
            if isinstance(env, kind):
                return wrapper(env)
        return super().__new__(cls)

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def __getnewargs__(self) -> tuple[Any]:
        return (self.env,)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset, with numbers in the info."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, numbers_of(info)

    def step(self, action: Any) -> Any:
        """Step, with numbers in the info."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, numbers_of(info)


class _VectorNumericInfo(VectorWrapper):  # generic from Gymnasium 1.2 on
    @property
    def autoreset_mode(self) -> Any:
        """What the vector environment has, which trainers ask for and ``VectorWrapper`` does not hand on."""
        return self.env.autoreset_mode  # pyright: ignore[reportAttributeAccessIssue]

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, _numbers_by_row(infos, self.num_envs)

    def step(self, actions: Any) -> Any:
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        return observations, rewards, terminations, truncations, _numbers_by_row(infos, self.num_envs)


class _AECNumericInfo(BaseWrapper[str, Any, Any]):
    @property
    def infos(self) -> dict[str, dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _numbers_by_agent(self.env.infos)


class _ParallelNumericInfo(BaseParallelWrapper[str, Any, Any]):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, _numbers_by_agent(infos)

    def step(self, actions: dict[str, Any]) -> Any:
        *rest, infos = self.env.step(actions)
        return *rest, _numbers_by_agent(infos)


_BY_KIND: dict[type, type] = {
    VectorEnv: _VectorNumericInfo,
    AECEnv: _AECNumericInfo,
    ParallelEnv: _ParallelNumericInfo,
}
