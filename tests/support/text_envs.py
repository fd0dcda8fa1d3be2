"""Environments that repeat texts, for the tests of the text spaces; other processes import them from here."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space, Tuple
from gymnasium.utils.env_checker import data_equivalence

from envweave_gym.core.spaces import Chat, Json, Unicode

KINDS = ["unicode", "json", "chat", "nested"]
LEAVES = KINDS[:3]

LENGTH = 64
WORDS = "héllo ☃ 𝄞 NUL\x00 中文"
TEXTS = [WORDS, "", "𝄞" * LENGTH, "ends with NUL\x00", "x" * LENGTH]
JSONS = [{"b": [1, 2.5, None, True, WORDS], "a": {"": []}}, None, [], -3, WORDS]
CHATS = [
    [{"role": "user", "content": WORDS}, {"role": "assistant", "content": "", "calls": [{"name": "ls"}]}],
    [],
    [{"role": "system", "content": "x" * 100}],
    [],
    [{"role": "user", "content": "last"}],
]

EPISODE = 3


def text_space(kind: str) -> Space[Any]:
    """A text space of its own, or all three in one another."""
    spaces = {"unicode": Unicode(LENGTH), "json": Json(256), "chat": Chat(256)}
    if kind != "nested":
        return spaces[kind]
    number = Box(-1, 1, (2,), np.float32)
    inside = Dict({"chat": spaces["chat"], "turn": Discrete(9)})
    return Dict({"text": spaces["unicode"], "pair": Tuple([spaces["json"], number]), "deep": Tuple([inside])})


def value(kind: str, i: int) -> Any:
    """Member number ``i`` of ``text_space(kind)``."""
    i %= len(TEXTS)
    text, data, chat = TEXTS[i], copy.deepcopy(JSONS[i]), copy.deepcopy(CHATS[i])
    if kind != "nested":
        return {"unicode": text, "json": data, "chat": chat}[kind]
    return {
        "text": text,
        "pair": (data, np.array([i / 9, 1], np.float32)),
        "deep": ({"chat": chat, "turn": i},),
    }


def values(kind: str) -> list[Any]:
    """All members of the text space that the tests use."""
    return [value(kind, i) for i in range(len(TEXTS))]


def same(one: Any, other: Any) -> bool:
    """Whether two members are equal, whether or not their integers are NumPy's."""
    return data_equivalence(_plain(one), _plain(other))


def _plain(member: Any) -> Any:
    if isinstance(member, dict):
        return {key: _plain(item) for key, item in member.items()}
    if isinstance(member, list | tuple):
        return type(member)(_plain(item) for item in member)
    return int(member) if isinstance(member, np.integer) else member


class RepeatEnv(gym.Env[Any, Any]):
    """A reset gives the value its seed names; then comes what was sent, and the third step is the last."""

    def __init__(self, kind: str = "unicode") -> None:
        self.kind = kind
        self.observation_space, self.action_space = text_space(kind), text_space(kind)
        self.time = 0
        self.start = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.start = self.start + 1 if seed is None else seed
        self.time = 0
        return value(self.kind, self.start), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return action, 1.0, self.time == EPISODE, False, {}


class BoundedEnv(RepeatEnv):
    """Has a bound of its own; environments that differ in theirs share a vector in another mode."""

    def __init__(self, shortest: int) -> None:
        super().__init__()
        self.observation_space = Unicode(LENGTH, min_length=shortest)
