"""A wrapper that removes all but numbers from infos, for trainers that fail on objects and strings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv, VectorWrapper
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.wrappers import BaseParallelWrapper, BaseWrapper

from envweave_gym.core.array_conversion import foreign_array
from envweave_gym.episode.trainable import trainable


def numbers_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of ``info`` that are numbers, booleans or arrays of them, plus ``trainable``.

    The stream and the fault are removed, as they are no numbers. So ``trainable`` is added, the result of
    :func:`envweave_gym.trainable`: without it a trainer would take a lost episode for a bad one.
    """
    values = {key: _own_array(value) for key, value in info.items()}
    numbers = {key: value for key, value in values.items() if _is_numeric(value)}
    return {**numbers, "trainable": trainable(info)}


def _own_array(value: Any) -> Any:
    """Return ``value``, converted to a NumPy array if it is an array of another library."""
    array = None if isinstance(value, np.ndarray | np.generic) else foreign_array(value)
    return value if array is None else array[()]  # [()] makes a scalar of a 0-d array


def _is_numeric(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    return isinstance(value, bool | int | float | np.number | np.bool_)


def _numbers_by_agent(infos: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {agent: numbers_of(info) for agent, info in infos.items()}


def _numbers_by_row(infos: Mapping[str, Any], num_envs: int) -> dict[str, Any]:
    """Return the numbers of a vector info and their masks, and ``final_obs``, which holds observations."""
    columns = _numeric_columns(infos)
    columns["trainable"] = np.full(num_envs, trainable(infos))
    columns["_trainable"] = np.ones(num_envs, dtype=np.bool_)
    return columns


def _numeric_columns(infos: Mapping[str, Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for key, column in infos.items():
        if isinstance(column, Mapping):
            column = _numeric_columns(column)
        # Masks follow their columns below.
        elif key.startswith("_") or not (key == "final_obs" or _is_numeric(column)):
            continue
        columns[key] = column
        if f"_{key}" in infos:
            columns[f"_{key}"] = infos[f"_{key}"]
    return columns


class NumericInfo(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Wrapper that removes all entries of infos that are not numbers, and adds ``trainable``.

    ``NumericInfo(env)`` takes Gymnasium, vector, AEC and parallel environments, and returns a wrapper of the
    same kind.
    """

    def __new__(cls, env: Any) -> Any:
        """Make the wrapper for the kind of ``env``: Gymnasium, vector, AEC or parallel."""
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
        """Reset the environment, and remove all but numbers from the info."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, numbers_of(info)

    def step(self, action: Any) -> Any:
        """Step the environment, and remove all but numbers from the info."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, numbers_of(info)


class _VectorNumericInfo(VectorWrapper):  # generic from Gymnasium 1.2 on
    @property
    def autoreset_mode(self) -> Any:
        """The mode of the vector, which trainers read and ``VectorWrapper`` does not forward."""
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
