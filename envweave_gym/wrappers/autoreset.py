"""A wrapper that resets a single environment in the step after the end of its episode.

The autoreset rules of vectors (next-step, same-step, disabled) are in :mod:`envweave_gym.episode.columns`.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from envweave_gym.core.actions import contains
from envweave_gym.core.faults import InvalidAction, shown
from envweave_gym.core.protocols import state_of


class Autoreset(gym.wrappers.Autoreset):
    """Wrapper for next-step autoreset: the step after an episode's end resets, ignores its action and earns 0.

    The stream of that step begins with ``episode_start``, as in Gymnasium's next-step vector mode, and
    :func:`envweave_gym.trainable` is False for it.
    """

    def step(self, action: Any) -> Any:
        """Step, or reset after the end of an episode; an invalid action raises :class:`InvalidAction` in both cases."""
        if self.autoreset and not contains(self.action_space, action):
            name = getattr(self.env, "name", None) or type(self.env.unwrapped).__name__
            raise InvalidAction(f"{name}: action {shown(action)} is not in {self.action_space}")
        return super().step(action)

    def state(self) -> dict[str, Any]:
        """Return the state that :func:`envweave_gym.state_of` shows."""
        return state_of(self.env)


class LaunchedAutoreset(Autoreset):
    """Autoreset wrapper of an environment made by ID; its spec is that of the ID."""

    @property
    def spec(self) -> Any:
        """The spec that the ID is registered with, which lists no wrappers."""
        return self.unwrapped.spec
