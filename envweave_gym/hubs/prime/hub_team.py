"""``envweave/HubTeam-v0``: an environment of the Prime Environments Hub as a game; each role is an agent."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from envweave_gym.core.arguments import call, check_render_mode
from envweave_gym.core.config import configured
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.core.protocols import no_agent
from envweave_gym.core.seeding import Seeds
from envweave_gym.envs.games.base import RESET_OPTIONS, TurnBasedGame
from envweave_gym.hubs.prime.agent_chat import AgentChat, Chat, as_text
from envweave_gym.hubs.prime.hub_config import HubConfig
from envweave_gym.hubs.prime.hub_env import ending_of, index_in
from envweave_gym.hubs.prime.hub_id import hub_id_of
from envweave_gym.hubs.prime.hub_packages import find_installed
from envweave_gym.hubs.prime.hub_session import HubSession
from envweave_gym.programs.reply import Reply, parse_reply, reply_of, reply_space
from envweave_gym.typed.json_space import JsonOf
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel

_NAME = "envweave/HubTeam-v0"
_LARGEST_SEED = 2**31


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
        self._session = HubSession(config, *find_installed(hub_id_of(config.hub_id)))
        self.possible_agents = list(self._session.agents)
        self.observation_spaces = {
            agent: JsonOf(list[dict[str, Any]], None) for agent in self.possible_agents
        }
        self.action_spaces = {agent: reply_space() for agent in self.possible_agents}
        self.agents: list[str] = []
        self._seeds = Seeds(_NAME)
        self._index = 0
        self._begin()

    def _begin(self) -> None:
        self.agent_selection = self.possible_agents[0]
        self._chats = {agent: AgentChat(agent) for agent in self.possible_agents}
        self._waiting: list[str] = []
        """Agents with an open call that have not acted."""
        self._replies: dict[str, Reply] = {}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode with the task that the seed draws, or with ``options={"index": i}``."""
        tasks = self._session.tasks
        random = np.random.default_rng(self._seeds.next(seed))
        drawn, inner_seed = (int(one) for one in random.integers([tasks, _LARGEST_SEED]))
        self._index = index_in(_NAME, options, drawn, tasks)
        self._begin()
        self._session.begin(self._index, inner_seed)
        self._start()
        self._read_calls()
        for agent in self.agents:
            self.infos[agent]["replaced"] = dict(self._session.replaced.get(agent, {}))
        self.show()

    def agents_to_act(self) -> list[str]:
        """Return the agents whose calls wait, and that have not acted yet."""
        return list(self._waiting)

    def _act(self, agent: str, action: Any) -> None:
        """Keep the reply of an agent; the program gets all replies when every call has one."""
        session = self._session
        session.catch_up()
        reply = self._replies[agent] = reply_of(action)
        self._chats[agent].append_reply(session.message_of(agent, reply))
        self._waiting.remove(agent)
        if self._waiting:
            self.agent_selection = self._waiting[0]
            return
        replies, self._replies = self._replies, {}
        session.answer(replies)
        if session.ending is None:
            self._read_calls()
        else:
            self._end()

    def _read_calls(self) -> None:
        calls = self._session.open_calls
        self._waiting = [agent for agent in self.possible_agents if agent in calls]
        for agent in self._waiting:
            request = calls[agent].request
            self.emit(*self._chats[agent].update(request.chat(), request.tools, request.sampling))
        self.agent_selection = self._waiting[0]
        self.infos = {agent: {"index": self._index, **self._chats[agent].info()} for agent in self.agents}

    def _end(self) -> None:
        ending = self._session.ending
        assert ending is not None
        for agent in self.agents:
            reward, truncated, info, events = ending_of(ending, agent)
            self.rewards[agent] = reward
            self.truncations[agent], self.terminations[agent] = truncated, not truncated
            self.infos[agent] = {"index": self._index, **self._chats[agent].info(), **info}
            self.emit(*(msgspec.structs.replace(event, to=(agent,)) for event in events))

    def observe(self, agent: str) -> Chat:
        """Return the chat of the agent's last call, with its reply."""
        return self._chats[agent].shown()

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """Return the action that a model's raw reply means; tool calls are read from ``<tool_call>`` tags."""
        if agent not in self.possible_agents:
            raise InvalidArgument(no_agent(_NAME, agent, self.possible_agents))
        return parse_reply(text, self._chats[agent].tools)

    def picture(self) -> str:
        """Return the chats of all agents as text."""
        return "\n\n".join(f"== {agent}\n{as_text(chat.messages)}" for agent, chat in self._chats.items())

    def episode_state(self) -> dict[str, Any]:
        """Return the task, the agents whose calls wait, and which version of which package plays."""
        package = self._session.package
        return {
            "index": self._index,
            "tasks": self._session.tasks,
            "hub_id": str(package.hub_id),
            "sha256": package.sha256,
            "waiting": list(self._waiting),
        }

    def close(self) -> None:
        """End the program with all its processes."""
        self._session.close()


raw_env = HubTeam


def env(**kwargs: Any) -> AECStream:
    """Make the game as an ``AECEnv`` with streams in its infos; ``kwargs`` are the arguments of the game."""
    return AECStream(call(_NAME, raw_env, kwargs), name=_NAME)


def parallel_env(**kwargs: Any) -> TurnBasedParallel:
    """Make the game as a ``ParallelEnv`` with streams in its infos; ``kwargs`` are the arguments of the game."""
    return TurnBasedParallel(env(**kwargs))
