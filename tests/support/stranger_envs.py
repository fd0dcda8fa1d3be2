"""Environments as other packages have them, which the kit must neither blame nor report many times."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
from broken_envs import Walk
from broken_games import Duel


class OpensWindows(Walk):
    """Has a mode that ends the process where there is no display, as GLFW does."""

    metadata = {"render_modes": ["human", "ansi"], "render_fps": 1}

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode == "human":
            raise SystemExit("no display")
        super().__init__(render_mode)


class Deterministic(Walk):
    """Has no randomness, and says nothing of that."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        gym.Env.reset(self, seed=seed)
        self.place, self.steps = 0, 0
        return self.see(), {}

    def step(self, action: Any) -> Any:
        self.place += int(action) - 1
        self.steps += 1
        return self.see(), float(self.place), self.steps == 5, False, {}


class DrawsForNothing(Deterministic):
    """Draws random numbers, from which nothing follows, as CliffWalking does where every transition is certain."""

    def step(self, action: Any) -> Any:
        self.np_random.random()
        return super().step(action)


class SeedsWithConstant(DrawsForNothing):
    """Draws random numbers, and gives every seed the same."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=None if seed is None else 1)


class OldLibrary(Walk):
    """Uses a library that warns."""

    def step(self, action: Any) -> Any:
        warnings.warn_explicit("fonts are deprecated", DeprecationWarning, msgspec.__file__, 1)
        return super().step(action)

    def render(self) -> Any:
        warnings.warn_explicit("fonts are deprecated", DeprecationWarning, msgspec.__file__, 1)
        return super().render()


class WarnsItself(Walk):
    """A warning of its own is its own to mend."""

    def render(self) -> Any:
        warnings.warn("drawn badly", stacklevel=1)
        return super().render()


class NoOptions(Walk):
    """Its reset takes no options, as before Gymnasium 0.26."""

    def reset(self, seed: int | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().reset(seed=seed)


class RaisesAbove(Walk):
    """Raises in one line, with many texts."""

    def step(self, action: Any) -> Any:
        if self.steps == 2:
            raise ValueError(f"I do not like {self.place}")
        return super().step(action)


class ForeignArray:
    """An array of another package, which compares elementwise as jax's do."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.values if dtype is None else self.values.astype(dtype)

    def __eq__(self, other: object) -> Any:
        return self.values == np.asarray(other)

    def __hash__(self) -> int:
        return 0


class TellsForeignArrays(Walk):
    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        return *rest, {"where": ForeignArray([self.place, self.steps])}


class SeesForeignArrays(Walk):
    def see(self) -> Any:
        return ForeignArray(super().see())


class DuelInAWindow(Duel):
    """A game with a mode that ends the process where there is no display."""

    metadata = {**Duel.metadata, "render_modes": ["human", "ansi"]}

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode == "human":
            raise SystemExit("no display")
        super().__init__(render_mode)
