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


def numbers_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of ``info`` that are numbers, booleans or arrays of them."""
    return {key: value for key, value in info.items() if _is_numeric(value)}


def _is_numeric(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    return isinstance(value, bool | int | float | np.number | np.bool_)


def _numbers_by_agent(infos: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {agent: numbers_of(info) for agent, info in infos.items()}


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


class _VectorNumericInfo(VectorWrapper[Any, Any, Any, Any, Any]):
    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, numbers_of(infos)

    def step(self, actions: Any) -> Any:
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        return observations, rewards, terminations, truncations, numbers_of(infos)


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
