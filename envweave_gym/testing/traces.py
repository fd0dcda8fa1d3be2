"""Playing an environment with sampled actions, writing down what it says, and comparing two such traces.

One player for each API, with the same methods, so that a check is written once for all of them. The actions
depend on the agent and on how often it has acted alone: two environments are given the same ones.
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
    """What an environment said once: after a reset (``acted`` is ``None``) or around a move."""

    acted: Any
    observation: Any
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    info: Any = None


Trace = list[Moment]


class Sampler:
    """Random actions: the n-th of an agent is always the same one."""

    def __init__(self) -> None:
        self._spaces: dict[str, Space[Any]] = {}

    def sample(self, space: Space[Any], agent: str = AGENT, mask: Any = None) -> Any:
        """The next action of ``agent``; the space of the environment itself is not drawn from."""
        own = self._spaces.get(agent)
        if own is None:
            own = self._spaces[agent] = copy.deepcopy(space)
            own.seed(zlib.crc32(str(agent).encode()))
        return own.sample() if mask is None else own.sample(mask)


class Player:
    """Plays one environment; copying the player copies the environment in mid-episode."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.over = True
        self.acted: Any = None
        self._sampler = Sampler()

    def rewind(self) -> None:
        """Sample the actions from the beginning again."""
        self._sampler = Sampler()

    def reset(self, seed: int | None = None) -> Moment:
        """Start an episode; with a seed the actions start anew as well."""
        if seed is not None:
            self.rewind()
        self.acted = None
        moment = copy.deepcopy(self._reset(seed))
        self.over = False
        return moment

    def move(self) -> Moment:
        """Act once, for every agent who must."""
        return copy.deepcopy(self._move())

    def go_on(self, moves: int, before_each: Callable[[Player], None] | None = None) -> Trace:
        """Play on; a finished episode is followed by one without a seed."""
        trace: Trace = []
        for _ in range(moves):
            if before_each is not None:
                before_each(self)
            trace.append(self.reset() if self.over else self.move())
        return trace

    def play(self, seed: int, moves: int, before_each: Callable[[Player], None] | None = None) -> Trace:
        """Start with ``seed`` and play on."""
        return [self.reset(seed), *self.go_on(moves, before_each)]

    def observed(self) -> dict[str, Any]:
        """What every agent observes now, as the environment handed it out and not a copy."""
        raise NotImplementedError

    def finish(self, most: int = 2000) -> bool:
        """Play the episode to its end; returns whether it ended within the limit of moves."""
        for _ in range(most):
            if self.over:
                return True
            self._move()
        return self.over

    def _reset(self, seed: int | None) -> Moment:
        raise NotImplementedError

    def _move(self) -> Moment:
        raise NotImplementedError


class GymPlayer(Player):
    """Plays a ``gymnasium.Env``."""

    def _reset(self, seed: int | None) -> Moment:
        self._seen, info = self.env.reset(seed=seed)
        return Moment(None, self._seen, info=info)

    def _move(self) -> Moment:
        self.acted = self._sampler.sample(self.env.action_space)
        self._seen, reward, terminated, truncated, info = self.env.step(self.acted)
        self.over = bool(terminated or truncated)
        return Moment(self.acted, self._seen, reward, terminated, truncated, info)

    def observed(self) -> dict[str, Any]:
        """The one observation."""
        return {AGENT: self._seen}


class AECPlayer(Player):
    """Plays a ``pettingzoo.AECEnv``; a moment is what the agent sees just before it acts."""

    def _reset(self, seed: int | None) -> Moment:
        self.env.reset(seed=seed)
        return Moment(None, None, info=list(self.env.agents))

    def _move(self) -> Moment:
        agent = self.env.agent_selection
        observation, reward, terminated, truncated, info = self.env.last()
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
        """What everybody who has not left would see."""
        return {agent: self.env.observe(agent) for agent in self.env.agents}


class ParallelPlayer(Player):
    """Plays a ``pettingzoo.ParallelEnv``; those whom the stream does not ask do not act."""

    def _reset(self, seed: int | None) -> Moment:
        self._seen, self.infos = self.env.reset(seed=seed)
        return Moment(None, self._seen, info=self.infos)

    def _move(self) -> Moment:
        self.acted = {agent: self._choose(agent) for agent in self.env.agents if self.asks(agent)}
        self._seen, rewards, terminated, truncated, self.infos = self.env.step(self.acted)
        self.over = not self.env.agents
        return Moment(self.acted, self._seen, rewards, terminated, truncated, self.infos)

    def observed(self) -> dict[str, Any]:
        """What the last reset or step has shown."""
        return self._seen

    def asks(self, agent: str) -> bool:
        """Whether the agent must act now."""
        return bool(self.infos.get(agent, {}).get("active", True))

    def _choose(self, agent: str) -> Any:
        mask = mask_of(self._seen.get(agent), self.infos.get(agent, {}))
        return self._sampler.sample(self.env.action_space(agent), agent, mask)


def player_of(env: Any) -> Player:
    """Somebody who plays ``env`` through its API."""
    for kind, player in ((gym.Env, GymPlayer), (AECEnv, AECPlayer), (ParallelEnv, ParallelPlayer)):
        if isinstance(env, kind):
            return player(env)
    raise TypeError(f"{type(env).__name__} is no gymnasium.Env, pettingzoo.AECEnv or ParallelEnv")


def mask_of(observation: Any, info: Mapping[str, Any]) -> Any:
    """The mask of legal actions, by PettingZoo's convention."""
    if isinstance(observation, Mapping) and "action_mask" in observation:
        return observation["action_mask"]
    return info.get("action_mask")


def plain(trace: Sequence[Moment]) -> Trace:
    """The trace without infos, whose streams name the seed."""
    return [moment._replace(info=None) for moment in trace]


def first_episode(trace: Sequence[Moment]) -> Trace:
    """The trace up to the next reset."""
    return [trace[0], *takewhile(lambda moment: moment.acted is not None, trace[1:])]


def first_difference(one: Sequence[Moment], other: Sequence[Moment]) -> str | None:
    """Where two traces part, in words; ``None`` where they do not."""
    for number, (a, b) in enumerate(zip(one, other, strict=False)):
        for name, mine, yours in zip(Moment._fields, a, b, strict=True):
            if not same(mine, yours):
                where, x, y = _narrowed(name, mine, yours)
                return f"at move {number} {where} is {brief(x)} in one and {brief(y)} in the other"
    if len(one) != len(other):
        return f"one ends after {len(one)} moves, the other after {len(other)}"
    return None


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of one type; one NaN is as another."""
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
    """The value with the arrays of jax, torch and others in it as NumPy arrays."""
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
    """Whether an array in the value is not NumPy's."""
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
    """The innermost place where two values differ, and what is there."""
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


def brief(value: Any, longest: int = 200) -> str:
    """A short form of ``value`` for an error text."""
    text = " ".join(repr(value).split())
    return text if len(text) <= longest else text[: longest - 3] + "..."


@contextmanager
def moved_global_rngs() -> Generator[None]:
    """Put the generators of the process where nothing can have put them, and back afterwards.

    An environment that seeds them with a constant leaves them in the same state again and again.
    """
    torch = sys.modules.get("torch")
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state() if torch else None
    random.seed()
    np.random.seed()
    if torch:
        torch.manual_seed(random.getrandbits(63))
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        if torch:
            torch.set_rng_state(kept[2])


def global_rngs() -> dict[str, bytes]:
    """The states of the random generators that belong to the whole process."""
    states = {"random": pickle.dumps(random.getstate()), "numpy.random": pickle.dumps(np.random.get_state())}
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states
