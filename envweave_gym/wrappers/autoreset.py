"""Autoreset for single environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from envweave_gym.core.actions import contains
from envweave_gym.core.faults import InvalidAction, shown
from envweave_gym.core.protocols import state_of


class Autoreset(gym.wrappers.Autoreset):
    """The step after the end resets: its action is not used, its reward is 0.

    The stream of that step opens with ``episode_start``, as in Gymnasium's next-step vector mode, and
    :func:`envweave_gym.trainable` is False for it.
    """

    def step(self, action: Any) -> Any:
        """Act, or reset after the end; what is no action is refused there too."""
        if self.autoreset and not contains(self.action_space, action):
            name = getattr(self.env, "name", None) or type(self.env.unwrapped).__name__
            raise InvalidAction(f"{name}: action {shown(action)} is not in {self.action_space}")
        return super().step(action)

    def state(self) -> dict[str, Any]:
        """What :func:`envweave_gym.state_of` gives."""
        return state_of(self.env)


class LaunchedAutoreset(Autoreset):
    """Autoreset of an environment made by ID; see :class:`LaunchedStream`."""

    @property
    def spec(self) -> Any:
        """The spec of the ID."""
        return self.unwrapped.spec
