"""Players, which step environments with sampled actions, and traces, which record the results for comparison.

Each API has a player with the same methods, so that one check serves all APIs. The sampled actions depend only on
the agent's name and its number of moves, so two instances of an environment get the same actions. A trace is a list
of moments, each the action and the results of one reset or step.
"""

from __future__ import annotations

import copy
import pickle
import random
import sys
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray
from pettingzoo import AECEnv, ParallelEnv

from envweave_gym.core.protocols import AGENT
from envweave_gym.episode.stream import Stream


class Moment(NamedTuple):
    """The action and the results of one reset (``acted`` is ``None``) or of one step with the action ``acted``."""

    acted: Any
    observation: Any
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    info: Any = None


Trace = list[Moment]


class Sampler:
    """Draws actions from spaces: the n-th action drawn for an agent is the same in every sampler."""

    def __init__(self) -> None:
        self._spaces: dict[str, Space[Any]] = {}

    def sample(self, space: Space[Any], agent: str = AGENT, mask: Any = None) -> Any:
        """Draw the next action of ``agent`` from a copy of ``space``, so that the environment's own stays unused."""
        own = self._spaces.get(agent)
        if own is None:
            own = self._spaces[agent] = copy.deepcopy(space)
            own.seed(zlib.crc32(str(agent).encode()))  # not hash(), which differs from process to process
        return own.sample() if mask is None else own.sample(mask)


class Player:
    """Base class that steps one environment with sampled actions, whatever its API.

    A copy or pickle of the player copies the environment in mid-episode.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.over = True
        self.acted: Any = None
        self._sampler = Sampler()

    def rewind(self) -> None:
        """Restart the sequence of sampled actions."""
        self._sampler = Sampler()

    def reset(self, seed: int | None = None) -> Moment:
        """Reset the environment and return its results as a moment; a seed also restarts the sequence of actions."""
        if seed is not None:
            self.rewind()
        self.acted = None
        moment = copy.deepcopy(self._reset(seed))
        self.over = False
        return moment

    def move(self) -> Moment:
        """Step the environment once, with a sampled action for each agent that must act; return action and results."""
        return copy.deepcopy(self._move())

    def go_on(self, moves: int, before_each: Callable[[Player], None] | None = None) -> Trace:
        """Return the trace of ``moves`` more moves; a finished episode is followed by a reset without a seed."""
        trace: Trace = []
        for _ in range(moves):
            if before_each is not None:
                before_each(self)
            trace.append(self.reset() if self.over else self.move())
        return trace

    def play(self, seed: int, moves: int, before_each: Callable[[Player], None] | None = None) -> Trace:
        """Reset with ``seed`` and return the trace of the reset and ``moves`` moves."""
        return [self.reset(seed), *self.go_on(moves, before_each)]

    def observed(self) -> dict[str, Any]:
        """Return the current observation of every agent: the environment's own objects, not copies."""
        raise NotImplementedError

    def finish(self, max_moves: int = 2000) -> bool:
        """Play the episode to its end; return whether it ended within ``max_moves``."""
        for _ in range(max_moves):
            if self.over:
                return True
            self._move()
        return self.over

    def _reset(self, seed: int | None) -> Moment:
        raise NotImplementedError

    def _move(self) -> Moment:
        raise NotImplementedError


class GymPlayer(Player):
    """Player of a ``gymnasium.Env``, which samples each action from the action space."""

    def _reset(self, seed: int | None) -> Moment:
        self._seen, info = self.env.reset(seed=seed)
        return Moment(None, self._seen, info=info)

    def _move(self) -> Moment:
        self.acted = self._sampler.sample(self.env.action_space)
        self._seen, reward, terminated, truncated, info = self.env.step(self.acted)
        self.over = bool(terminated or truncated)
        return Moment(self.acted, self._seen, reward, terminated, truncated, info)

    def observed(self) -> dict[str, Any]:
        """Return the current observation in a dict whose key is the name of the only agent."""
        return {AGENT: self._seen}


class AECPlayer(Player):
    """Player of a ``pettingzoo.AECEnv``, which samples the selected agent's action from its space and action mask.

    An agent that is done takes ``None``. A moment (the record of a step) has the agent with its action, and what
    ``last()`` returned to the agent before it.
    """

    def _reset(self, seed: int | None) -> Moment:
        self.env.reset(seed=seed)
        return Moment(None, None, info=list(self.env.agents))

    def _move(self) -> Moment:
        agent = self.env.agent_selection
        observation, reward, terminated, truncated, info = self.env.last()
        # a copy, as the step may change them in place
        seen = copy.deepcopy((observation, reward, terminated, truncated, info))
        action = None
        if not (terminated or truncated):
            space, mask = self.env.action_space(agent), mask_of(observation, info)
            action = self._sampler.sample(space, agent, mask)
        self.acted = (agent, action)
        self.env.step(action)
        self.over = not self.env.agents
        return Moment(self.acted, *seen)

    def observed(self) -> dict[str, Any]:
        """Return the current observation of every agent that is still in the game."""
        return {agent: self.env.observe(agent) for agent in self.env.agents}


class ParallelPlayer(Player):
    """Player of a ``pettingzoo.ParallelEnv``, which samples the actions of the agents that must act."""

    def _reset(self, seed: int | None) -> Moment:
        self._seen, self.infos = self.env.reset(seed=seed)
        return Moment(None, self._seen, info=self.infos)

    def _move(self) -> Moment:
        self.acted = {agent: self._choose(agent) for agent in self.env.agents if self.asks(agent)}
        self._seen, rewards, terminated, truncated, self.infos = self.env.step(self.acted)
        self.over = not self.env.agents
        return Moment(self.acted, self._seen, rewards, terminated, truncated, self.infos)

    def observed(self) -> dict[str, Any]:
        """Return the observations of the last reset or step."""
        return self._seen

    def asks(self, agent: str) -> bool:
        """Return whether the agent must act now: the entry ``"active"`` of its info, or ``True`` without that entry."""
        return bool(self.infos.get(agent, {}).get("active", True))

    def _choose(self, agent: str) -> Any:
        mask = mask_of(self._seen.get(agent), self.infos.get(agent, {}))
        return self._sampler.sample(self.env.action_space(agent), agent, mask)


def player_of(env: Any) -> Player:
    """Return the player for the API of ``env``; raise ``TypeError`` if it is not an environment."""
    for kind, player in ((gym.Env, GymPlayer), (AECEnv, AECPlayer), (ParallelEnv, ParallelPlayer)):
        if isinstance(env, kind):
            return player(env)
    raise TypeError(f"{type(env).__name__} is no gymnasium.Env, pettingzoo.AECEnv or ParallelEnv")


def mask_of(observation: Any, info: Mapping[str, Any]) -> Any:
    """Return the mask of legal actions from the observation or the info, or ``None`` if neither has one."""
    if isinstance(observation, Mapping) and "action_mask" in observation:
        return observation["action_mask"]
    return info.get("action_mask")


def plain(trace: Sequence[Moment]) -> Trace:
    """Return the trace without infos: their streams contain the seed, so they differ between seeds."""
    return [moment._replace(info=None) for moment in trace]


def first_episode(trace: Sequence[Moment]) -> Trace:
    """Return the part of the trace before its second reset."""
    return [trace[0], *takewhile(lambda moment: moment.acted is not None, trace[1:])]


def first_difference(one: Sequence[Moment], other: Sequence[Moment]) -> str | None:
    """Return a sentence about the first difference of two traces, or ``None`` if they are equal."""
    for number, (a, b) in enumerate(zip(one, other, strict=False)):
        for name, mine, yours in zip(Moment._fields, a, b, strict=True):
            if not same(mine, yours):
                where, x, y = _narrowed(name, mine, yours)
                return f"at move {number} {where} is {brief(x)} in one and {brief(y)} in the other"
    if len(one) != len(other):
        return f"one ends after {len(one)} moves, the other after {len(other)}"
    return None


def same(one: Any, other: Any) -> bool:
    """Return whether two values have the same type and are equal, also in their parts; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    match one:
        case dict():
            return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
        case list() | tuple():
            return len(one) == len(other) and all(map(same, one, other))
        case np.ndarray():
            return one.dtype == other.dtype and _same_arrays(one, other)
        case float() | np.inexact():
            return bool(one == other or (np.isnan(one) and np.isnan(other)))
        case _ if hasattr(one, "__array__"):  # arrays of jax, torch and others, which compare elementwise
            mine, yours = np.asarray(one), np.asarray(other)
            return mine.dtype == yours.dtype and _same_arrays(mine, yours)
        case _:
            return bool(one == other)


def in_numpy(value: Any) -> Any:
    """Return the value with arrays of jax, torch and other packages converted to NumPy arrays."""
    match value:
        case dict():
            return {key: in_numpy(one) for key, one in value.items()}
        case list() | tuple():
            inner = [in_numpy(one) for one in value]
            if isinstance(value, list):
                return inner
            return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
        case np.ndarray() | np.generic():
            return value
        case _:
            return np.asarray(value) if hasattr(value, "__array__") else value


def has_foreign_arrays(value: Any) -> bool:
    """Return whether the value contains an array that is not NumPy's."""
    match value:
        case dict():
            return any(map(has_foreign_arrays, value.values()))
        case list() | tuple():
            return any(map(has_foreign_arrays, value))
        case _:
            return hasattr(value, "__array__") and not isinstance(value, np.ndarray | np.generic)


def _same_arrays(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.dtype == object:
        return one.shape == other.shape and all(map(same, one.flat, other.flat))
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")


def _narrowed(where: str, one: Any, other: Any) -> tuple[str, Any, Any]:
    """Return the path of the innermost difference of two values, such as ``info['x']``, and both parts there.

    ``where`` is the path of the two values.
    """
    inner: list[tuple[str, Any, Any]] = []
    if isinstance(one, Stream) and isinstance(other, Stream):
        inner = [
            (f"{where}.{name}", getattr(one, name), getattr(other, name)) for name in ("events", "requests")
        ]
    elif isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        inner = [(f"{where}[{key!r}]", one[key], other[key]) for key in one]
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        inner = [(f"{where}[{i}]", *pair) for i, pair in enumerate(zip(one, other, strict=True))]
    differing = (_narrowed(*item) for item in inner if not same(item[1], item[2]))
    return next(differing, (where, one, other))


def brief(value: Any, max_chars: int = 200) -> str:
    """Return ``repr(value)`` on one line, cut to ``max_chars``, for an error text."""
    text = " ".join(repr(value).split())
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."


@contextmanager
def moved_global_rngs() -> Generator[None]:
    """Seed the global random generators from the system, and restore their states on exit.

    Without this, an environment that seeds them with a constant would go unnoticed: the constant's state could be
    the one that they already had.
    """
    torch = sys.modules.get("torch")
    saved = random.getstate(), np.random.get_state(), torch.get_rng_state() if torch else None
    random.seed()
    np.random.seed()
    if torch:
        torch.manual_seed(random.getrandbits(63))
    try:
        yield
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])
        if torch:
            torch.set_rng_state(saved[2])


def global_rngs() -> dict[str, bytes]:
    """Return the states of the global random generators, by package; torch's only if it is imported."""
    states = {"random": pickle.dumps(random.getstate()), "numpy.random": pickle.dumps(np.random.get_state())}
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states
