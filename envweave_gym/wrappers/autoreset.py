"""Autoreset for single environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from envweave_gym.protocols import state_of


class Autoreset(gym.wrappers.Autoreset):
    """The step after the end resets: its action is not used, its reward is 0.

    The stream of that step opens with ``episode_start``, as in Gymnasium's next-step vector mode, and
    :func:`envweave_gym.trainable` is False for it.
    """

    def state(self) -> dict[str, Any]:
        """What :func:`envweave_gym.state_of` gives."""
        return state_of(self.env)


class LaunchedAutoreset(Autoreset):
    """Autoreset of an environment made by ID; see :class:`LaunchedStream`."""

    @property
    def spec(self) -> Any:
        """The spec of the ID."""
        return self.unwrapped.spec
