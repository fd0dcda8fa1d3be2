"""``envweave/Hub-v0``: an environment of the Prime Environments Hub with one agent, which plays the model."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from envweave_gym.core.arguments import check_render_mode
from envweave_gym.core.config import configured
from envweave_gym.core.faults import InvalidArgument, ResetNeeded
from envweave_gym.episode.emitter import Emitter
from envweave_gym.hubs.prime.agent_chat import AgentChat, Chat, as_text
from envweave_gym.hubs.prime.hub_chats import HubChats
from envweave_gym.hubs.prime.hub_config import HubConfig
from envweave_gym.hubs.prime.hub_packages import GAME_ID
from envweave_gym.programs.reply import parse_reply, reply_of, reply_space
from envweave_gym.typed.json_space import JsonOf


class SeveralAgents(InvalidArgument):
    """Raised for a package with several agents where one is needed."""


class HubEnv(gym.Env[Any, Any], Emitter):
    """An environment of the Prime Environments Hub, as its own library evaluates it; the agent plays the model.

    Observations are the chat that the program sends to the model, and actions its reply: a text, or an object with
    ``content`` and ``tool_calls``. The reward of the last step is the one that the library gives; steps before that
    have none. ``info`` has the offered ``tools``, and at the end ``metrics`` and ``stop``.
    """

    name = "envweave/Hub-v0"
    metadata: dict[str, Any] = {
        "render_modes": ["ansi", "human"],
        "render_fps": 1,
        "reset_options": ("index",),
    }

    @configured(HubConfig)
    def __init__(self, config: HubConfig) -> None:
        check_render_mode(self.name, self, config.render_mode)
        self.config, self.render_mode = config, config.render_mode
        self._chats = HubChats(self.name, config, private=False)
        if len(self._chats.agents) != 1:
            self._chats.close()
            raise SeveralAgents(
                f"{self.name}: {config.hub_id} has the agents {', '.join(self._chats.agents)}; make it as a game "
                f"with {GAME_ID}, or with api='parallel' or 'aec'"
            )
        self._agent = self._chats.agents[0]
        self.observation_space = JsonOf(list[dict[str, Any]], None)
        self.action_space = reply_space()

    @property
    def _chat(self) -> AgentChat:
        return self._chats.by_agent[self._agent]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Chat, dict[str, Any]]:
        """Begin an episode with the task that the seed draws, or with ``options={"index": i}``."""
        super().reset(seed=seed)
        self.emit(*self._chats.begin(self.np_random, options))
        self._show()
        return self._chat.observation(), {
            **self._chats.info(self._agent),
            "replaced": dict(self._chats.replaced),
        }

    def step(self, action: Any) -> tuple[Chat, float, bool, bool, dict[str, Any]]:
        """Give the program a reply, and wait until it calls the model again or ends."""
        if not self._chats.waiting:
            raise ResetNeeded(f"{self.name}: the episode is over; call reset")
        self.emit(*(self._chats.reply(self._agent, reply_of(action)) or ()))
        self._show()
        if not self._chats.has_ended:
            return self._chat.observation(), 0.0, False, False, self._chats.info(self._agent)
        end = self._chats.result(self._agent)
        return self._chat.observation(), end.reward, not end.truncated, end.truncated, end.info

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """Return the action that a model's raw reply means; tool calls are read from ``<tool_call>`` tags."""
        return parse_reply(text, self._chat.tools)

    def render(self) -> Any:
        """Return the chat as text in mode ``"ansi"``, print it in mode ``"human"``."""
        if self.render_mode == "ansi":
            return as_text(self._chat.messages)
        if self.render_mode == "human":
            print(as_text(self._chat.messages))
        return None

    def _show(self) -> None:
        if self.render_mode == "human":
            self.render()

    def episode_state(self) -> dict[str, Any]:
        """Return the task and the number of tasks, and which version of which package plays it."""
        return self._chats.episode_state()

    def close(self) -> None:
        """End the program with all its processes."""
        self._chats.close()
