"""``envweave/HubTeam-v0``: an environment of the Prime Environments Hub as a game; each role is an agent."""

from __future__ import annotations

from typing import Any

import numpy as np

from envweave_gym.core.arguments import call, check_render_mode
from envweave_gym.core.config import configured
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.core.protocols import no_agent
from envweave_gym.core.seeding import Seeds
from envweave_gym.envs.games.base import RESET_OPTIONS, TurnBasedGame
from envweave_gym.episode.stream import Event
from envweave_gym.hubs.prime.agent_chat import Chat, as_text
from envweave_gym.hubs.prime.hub_chats import HubChats
from envweave_gym.hubs.prime.hub_config import HubConfig
from envweave_gym.programs.reply import parse_reply, reply_of, reply_space
from envweave_gym.typed.json_space import JsonOf
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel

_NAME = "envweave/HubTeam-v0"


class HubTeam(TurnBasedGame):
    """Game whose agents are the roles of a hub environment; agents whose calls wait at the same time act together.

    An agent's observation is the chat of its last call. All agents get the library's rewards at the end.
    """

    name = _NAME
    metadata: dict[str, Any] = {
        "name": "hub_team_v0",
        "render_modes": ["ansi", "human"],
        "render_fps": 1,
        "is_parallelizable": False,
        "reset_options": (*RESET_OPTIONS, "index"),
    }

    @configured(HubConfig)
    def __init__(self, config: HubConfig) -> None:
        super().__init__()
        check_render_mode(_NAME, self, config.render_mode)
        self.config, self.render_mode = config, config.render_mode
        self._chats = HubChats(_NAME, config, private=True)
        self.possible_agents = list(self._chats.agents)
        self.observation_spaces = {
            agent: JsonOf(list[dict[str, Any]], None) for agent in self.possible_agents
        }
        self.action_spaces = {agent: reply_space() for agent in self.possible_agents}
        self.agents: list[str] = []
        self.agent_selection = self.possible_agents[0]
        self._seeds = Seeds(_NAME)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode with the task that the seed draws, or with ``options={"index": i}``."""
        events = self._chats.begin(np.random.default_rng(self._seeds.next(seed)), options)
        self._start()
        self._show_calls(events)
        for agent in self.agents:
            self.infos[agent]["replaced"] = dict(self._chats.replaced.get(agent, {}))
        self.show()

    def agents_to_act(self) -> list[str]:
        """Return the agents whose calls wait, and that have not acted yet."""
        return list(self._chats.waiting)

    def _act(self, agent: str, action: Any) -> None:
        """Give the program the reply of an agent; it goes on when every call has one."""
        events = self._chats.reply(agent, reply_of(action))
        if events is None:
            self.agent_selection = self._chats.waiting[0]
        elif self._chats.has_ended:
            self._end(events)
        else:
            self._show_calls(events)

    def _show_calls(self, events: list[Event]) -> None:
        self.emit(*events)
        self.agent_selection = self._chats.waiting[0]
        self.infos = {agent: self._chats.info(agent) for agent in self.agents}

    def _end(self, events: list[Event]) -> None:
        self.emit(*events)
        for agent in self.agents:
            end = self._chats.result(agent)
            self.rewards[agent], self.infos[agent] = end.reward, end.info
            self.truncations[agent], self.terminations[agent] = end.truncated, not end.truncated

    def observe(self, agent: str) -> Chat:
        """Return the chat of the agent's last call, with its reply."""
        return self._chats.by_agent[agent].observation()

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """Return the action that a model's raw reply means; tool calls are read from ``<tool_call>`` tags."""
        if agent not in self.possible_agents:
            raise InvalidArgument(no_agent(_NAME, agent, self.possible_agents))
        return parse_reply(text, self._chats.by_agent[agent].tools)

    def picture(self) -> str:
        """Return the chats of all agents as text."""
        return "\n\n".join(
            f"== {agent}\n{as_text(chat.messages)}" for agent, chat in self._chats.by_agent.items()
        )

    def episode_state(self) -> dict[str, Any]:
        """Return the task, the agents whose calls wait, and which version of which package plays."""
        return {**self._chats.episode_state(), "waiting": list(self._chats.waiting)}

    def close(self) -> None:
        """End the program with all its processes."""
        self._chats.close()


raw_env = HubTeam


def env(**kwargs: Any) -> AECStream:
    """Make the game as an ``AECEnv`` with streams in its infos; ``kwargs`` are the arguments of the game."""
    return AECStream(call(_NAME, raw_env, kwargs), name=_NAME)


def parallel_env(**kwargs: Any) -> TurnBasedParallel:
    """Make the game as a ``ParallelEnv`` with streams in its infos; ``kwargs`` are the arguments of the game."""
    return TurnBasedParallel(env(**kwargs))
