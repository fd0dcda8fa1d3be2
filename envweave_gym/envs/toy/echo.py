"""Echo: returns each action, a text, as the observation."""

from __future__ import annotations

from typing import Any

from envweave_gym.core.seeding import HashedRandomness
from envweave_gym.core.spaces import Unicode
from envweave_gym.episode.emitter import Emitter
from envweave_gym.episode.message import message

READY = "Echo environment ready!"
"""The first observation of an episode."""
MAX_LENGTH = 4096


class EchoEnv(Emitter, HashedRandomness[str, str]):
    """Environment that returns the action as the observation, with the reward ``0.1 * len(action)``.

    Only a step limit ends the episode.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1, "ignores_seed": True, "reset_options": ()}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = self.action_space = Unicode(MAX_LENGTH)
        self._said = READY

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Return the first observation, which says that the environment is ready."""
        self.seed_late(seed)
        return self._say(READY), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Return the action as the observation."""
        return self._say(action), 0.1 * len(action), False, False, {}

    def _say(self, text: str) -> str:
        self._said = text
        self.emit(message("user", text))
        return text

    def render(self) -> Any:
        """Return the last action."""
        return self._said if self.render_mode == "ansi" else None

    def episode_state(self) -> dict[str, Any]:
        """Return the last action."""
        return {"last_message": self._said}
