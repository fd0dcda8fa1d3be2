"""Spaces of classes that neither Gymnasium nor this package has, and an environment that uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space, Text


class Even(Discrete):
    """The even numbers below ``n``."""

    def contains(self, x: Any) -> bool:
        return super().contains(x) and x % 2 == 0

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return super().sample() // 2 * 2


class UnitVectors(Box):
    """Vectors of length 1."""

    def contains(self, x: Any) -> bool:
        return super().contains(x) and bool(np.isclose(np.linalg.norm(x), 1))

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        drawn = self.np_random.normal(size=self.shape)
        return (drawn / np.linalg.norm(drawn)).astype(np.float32)


class Loud(Text):
    """Texts in capitals."""

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and x == x.upper()

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return super().sample().upper()


class Words(Space[str]):
    """What a function makes of one of some words; it has no base class to fall back on."""

    def __init__(self, make: Callable[[str], str], words: list[str]) -> None:
        self.make, self.words = make, words
        super().__init__(dtype=str)

    def contains(self, x: Any) -> bool:
        return x in map(self.make, self.words)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return self.make(self.words[self.np_random.integers(len(self.words))])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Words) and self.sentences == other.sentences

    __hash__ = None  # type: ignore[assignment]

    @property
    def sentences(self) -> list[str]:
        """All members."""
        return [self.make(word) for word in self.words]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.words})"


def find(word: str) -> str:
    """A mission."""
    return f"find the {word}"


class Fixed(Words):
    """Holds a function that has no name, and is made without arguments."""

    def __init__(self) -> None:
        super().__init__(lambda word: f"go to {word}", ["bed", "work"])


def spaces() -> dict[str, Space[Any]]:
    """One of each, by what a copy elsewhere can be made of."""
    return {
        "even": Even(10),
        "unit": UnitVectors(-1, 1, (2,), np.float32),
        "loud": Loud(9),
        "words": Words(find, ["ball", "key"]),
        "fixed": Fixed(),
        "deep": Dict({"one": gym.spaces.Tuple([Even(4), Discrete(2)])}),
    }


class Odd(gym.Env[Any, Any]):
    """Observes a member of each of the spaces."""

    metadata = {"render_modes": []}

    def __init__(self, nameless: bool = False) -> None:
        own = spaces()
        if nameless:
            own["words"] = Words(lambda word: word.upper(), ["ball", "key"])
        self.observation_space = Dict(own)
        self.action_space = UnitVectors(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return self.observation_space.sample(), float(action[0]), False, False, {}


gym.register("odd/Spaces-v0", "odd_spaces:Odd", disable_env_checker=True)
