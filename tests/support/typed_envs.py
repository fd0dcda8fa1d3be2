"""Typed environments for the tests of the adapter; other processes import them from here."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from envweave_gym.episode.emitter import Emitter
from envweave_gym.episode.message import message
from envweave_gym.typed import TypedEnv

Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]


class Tool(Enum):
    """A choice whose values are no JSON."""

    READ = ("read", 1)
    WRITE = ("write", 2)


class Call(msgspec.Struct, tag=True):
    """One arm of a tagged union."""

    name: str
    arguments: dict[str, Any] = {}


class Say(msgspec.Struct, tag=True):
    """The other arm."""

    text: str


class Tree(msgspec.Struct):
    """A type that contains itself."""

    value: int
    children: list[Tree] = []


@dataclass(frozen=True)
class Point:
    """A model inside a model."""

    x: float
    y: float
    visible: bool = True


@dataclass
class Everything:
    """One field of every supported type."""

    text: str
    short: Annotated[str, msgspec.Meta(min_length=1, max_length=8)]
    flag: bool
    number: int
    percent: Percent
    positive: Annotated[int, msgspec.Meta(gt=0)]
    real: float
    share: Annotated[float, msgspec.Meta(gt=0, le=1)]
    word: Literal["left", 2, None]
    tool: Tool
    maybe_tool: Tool | None
    point: Point
    pair: tuple[int, str]
    anything: Any
    names: list[str]
    two: Annotated[list[int], msgspec.Meta(min_length=1, max_length=2)]
    table: dict
    scores: dict[str, float]
    maybe_text: str | None
    either: int | str
    act: Call | Say
    points: list[Point]
    history: tuple[Percent, ...]
    tree: Tree
    maybe_tree: Tree | None
    move: Annotated[int, Discrete(5, start=2)]
    gain: Annotated[float, Box(-1, 1, (), np.float64)]
    grid: Annotated[np.ndarray, Box(0, 255, (2, 3), np.uint8)]
    cell: Annotated[tuple[int, int], MultiDiscrete([3, 4])]
    derived: int = field(init=False, default=0)


@dataclass
class Guess:
    """What a player says."""

    number: Percent
    note: Annotated[str, msgspec.Meta(max_length=16)] = ""


@dataclass
class Hint:
    """What a player is told; the last three fields are the outcome."""

    text: str
    tries: Percent
    reward: float | None = None
    done: bool = False


@dataclass
class Progress:
    """Metadata of the episode."""

    episode_id: str = ""
    tries: int = 0


class GuessNumber:
    """Find a number: the seed decides, the generator is its own, the observation tells the outcome."""

    def __init__(self, limit: int = 100) -> None:
        self.limit = limit
        self._state = Progress()

    def reset(self, seed: int) -> Hint:
        self._secret = int(np.random.default_rng(seed).integers(self.limit + 1))
        self._state = Progress(episode_id=str(uuid.UUID(int=seed)))
        return Hint("guess!", 0)

    def step(self, action: Guess) -> Hint:
        assert type(action) is Guess
        assert type(action.number) is int
        self._state.tries += 1
        found = action.number == self._secret
        return Hint("yes" if found else "no", min(self._state.tries, 100), reward=float(found), done=found)

    @property
    def state(self) -> Progress:
        return self._state


class Move(msgspec.Struct):
    """Where to walk."""

    to: Literal["left", "right"]


class Place(msgspec.Struct):
    """Where one is."""

    at: Annotated[int, msgspec.Meta(ge=-9, le=9)]
    view: Annotated[np.ndarray, Box(-9, 9, (2,), np.float32)]


class Walk(Emitter):
    """Uses what is optional: five values, Gymnasium's generator, options, state, render, close, events."""

    np_random: np.random.Generator
    metadata = {"render_modes": ["ansi"]}

    def __init__(self) -> None:
        self.at = 0
        self.closed = False

    def reset(self, *, options: dict[str, Any] | None) -> tuple[Place, dict[str, Any]]:
        self.at = int((options or {}).get("at", self.np_random.integers(-3, 4)))
        self.emit(message("user", f"you are at {self.at}"))
        return self._place(), {"home": self.at == 0}

    def step(self, action: Move) -> tuple[Place, float, bool, bool, dict[str, Any]]:
        self.at += 1 if action.to == "right" else -1
        return self._place(), -1.0, self.at == 0, abs(self.at) == 9, {"home": self.at == 0}

    def _place(self) -> Place:
        return Place(self.at, np.array([self.at, -self.at], np.float32))

    def state(self) -> dict[str, Any]:
        return {"at": np.int64(self.at)}

    def parse_action(self, text: str) -> Move:
        if "right" not in text and "left" not in text:
            raise ValueError("say left or right")
        return Move("right" if "right" in text else "left")

    def render(self) -> str:
        return f"at {self.at}"

    def close(self) -> None:
        self.closed = True


def make_guess(limit: int = 100) -> TypedEnv:
    """How an author gives the environment to ``gymnasium.register`` or to a card."""
    return TypedEnv(GuessNumber, limit=limit)
