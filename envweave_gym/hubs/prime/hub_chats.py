"""The agents' side of a hub environment: their chats, the calls that wait, and their replies.

``envweave/Hub-v0`` and ``envweave/HubTeam-v0`` are the interfaces of Gymnasium and of PettingZoo to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.episode.stream import Event, metrics
from envweave_gym.hubs.prime.agent_chat import AgentChat
from envweave_gym.hubs.prime.hub_config import HubConfig
from envweave_gym.hubs.prime.hub_id import hub_id_of
from envweave_gym.hubs.prime.hub_packages import find_installed
from envweave_gym.hubs.prime.hub_session import HubSession
from envweave_gym.programs.reply import Reply

_LARGEST_SEED = 2**31


@dataclass(frozen=True)
class AgentResult:
    """An agent's part of the end of an episode."""

    reward: float
    truncated: bool
    info: dict[str, Any]
    """The agent's last info, with the library's metrics and its reason to stop."""


class HubChats:
    """The chats of the agents of one environment, and the session that they are played in."""

    def __init__(self, name: str, config: HubConfig, *, private: bool) -> None:
        """Start the program of an installed package; with ``private`` an agent alone sees the events of its chat."""
        self._name, self._private = name, private
        self._session = HubSession(config, *find_installed(hub_id_of(config.hub_id)))
        self.agents = self._session.agents
        self.replaced = self._session.replaced
        self._forget_episode(0)

    def _forget_episode(self, index: int) -> None:
        self._index = index
        self.by_agent = {agent: AgentChat(agent if self._private else None) for agent in self.agents}
        self.waiting: list[str] = []
        """Agents whose calls have no reply yet."""
        self._replies: dict[str, Reply] = {}

    @property
    def has_ended(self) -> bool:
        """Whether the program has ended the episode."""
        return self._session.ending is not None

    def begin(self, random: np.random.Generator, options: dict[str, Any] | None) -> list[Event]:
        """Begin an episode with a drawn task, or with ``options={"index": i}``; return the events of its first calls.

        The program's own seed is drawn too, whichever task is chosen.
        """
        tasks = self._session.tasks
        drawn, seed = (int(one) for one in random.integers([tasks, _LARGEST_SEED]))
        self._forget_episode(_index_in(self._name, options, drawn, tasks))
        self._session.begin(self._index, seed)
        return self._read_calls()

    def reply(self, agent: str, reply: Reply) -> list[Event] | None:
        """Store the reply of an agent to its call; return the events that follow it.

        The program gets the replies when all calls have one; return ``None`` while calls of other agents wait. Raise
        ``InvalidAction`` if the call cannot be answered so; it waits as before.
        """
        session = self._session
        waiting, self.waiting = self.waiting, []  # none, if the copy cannot be resumed
        session.resume_copy()
        self.waiting = waiting
        self.by_agent[agent].append_reply(session.message_of(agent, reply))
        self._replies[agent] = reply
        self.waiting.remove(agent)
        if self.waiting:
            return None
        replies, self._replies = self._replies, {}
        session.answer(replies)
        return self._read_metrics() if self.has_ended else self._read_calls()

    def _read_calls(self) -> list[Event]:
        calls, events = self._session.open_calls, list[Event]()
        self.waiting = [agent for agent in self.agents if agent in calls]
        for agent in self.waiting:
            request = calls[agent].request
            events += self.by_agent[agent].update(request.chat(), request.tools, request.sampling)
        return events

    def _read_metrics(self) -> list[Event]:
        assert self._session.ending is not None
        events: list[Event] = []
        for agent in self.agents:
            values = self._session.ending.metrics.get(agent, {})
            numbers = {name: value for name, value in values.items() if value is not None}
            if numbers:
                to = (agent,) if self._private else None
                events.append(msgspec.structs.replace(metrics(**numbers), to=to))
        return events

    def info(self, agent: str) -> dict[str, Any]:
        """Return the index of the task, and the parameters of the agent's last call."""
        return {"index": self._index, **self.by_agent[agent].info()}

    def result(self, agent: str) -> AgentResult:
        """Return an agent's part of the end."""
        ending = self._session.ending
        assert ending is not None
        info = {
            **self.info(agent),
            "metrics": dict(ending.metrics.get(agent, {})),
            "stop": ending.stops.get(agent),
        }
        return AgentResult(ending.rewards[agent], ending.truncated.get(agent, False), info)

    def episode_state(self) -> dict[str, Any]:
        """Return the task and the number of tasks, and which version of which package plays it."""
        package = self._session.package
        return {
            "index": self._index,
            "tasks": self._session.tasks,
            "hub_id": str(package.hub_id),
            "sha256": package.sha256,
        }

    def close(self) -> None:
        """End the program with all its processes."""
        self.waiting = []
        self._session.close()


def _index_in(name: str, options: dict[str, Any] | None, drawn: int, tasks: int) -> int:
    """Return the task that the reset options choose, or the ``drawn`` one."""
    index = (options or {}).get("index")
    if index is None:
        return drawn
    is_whole = isinstance(index, int | np.integer) and not isinstance(index, bool)
    if not is_whole or not 0 <= index < tasks:
        raise InvalidArgument(
            f"{name}: options['index']={shown(index)} is not a task; give an int from 0 to {tasks - 1}"
        )
    return int(index)
