"""``envweave/Hub-v0``: an environment of the Prime Environments Hub with one agent, which plays the model."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from envweave_gym.core.arguments import check_render_mode
from envweave_gym.core.config import configured
from envweave_gym.core.faults import InvalidArgument, ResetNeeded, shown
from envweave_gym.episode.emitter import Emitter
from envweave_gym.episode.stream import Event, metrics
from envweave_gym.hubs.prime.agent_chat import AgentChat, Chat, as_text
from envweave_gym.hubs.prime.hub_config import HubConfig
from envweave_gym.hubs.prime.hub_id import hub_id_of
from envweave_gym.hubs.prime.hub_packages import GAME_ID, find_installed
from envweave_gym.hubs.prime.hub_session import Ending, HubSession
from envweave_gym.programs.reply import parse_reply, reply_of, reply_space
from envweave_gym.typed.json_space import JsonOf

_LARGEST_SEED = 2**31


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
        self._session = HubSession(config, *find_installed(hub_id_of(config.hub_id)))
        if len(self._session.agents) != 1:
            self._session.close()
            raise SeveralAgents(
                f"{self.name}: {config.hub_id} has the agents {', '.join(self._session.agents)}; make it as a game "
                f"with {GAME_ID}, or with api='parallel' or 'aec'"
            )
        self._agent = self._session.agents[0]
        self.observation_space = JsonOf(list[dict[str, Any]], None)
        self.action_space = reply_space()
        self._index = 0
        self._is_live = False
        self._chat = AgentChat()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Chat, dict[str, Any]]:
        """Begin an episode with the task that the seed draws, or with ``options={"index": i}``."""
        super().reset(seed=seed)
        self._is_live = False
        drawn, inner_seed = (
            int(one) for one in self.np_random.integers([self._session.tasks, _LARGEST_SEED])
        )
        self._index = index_in(self.name, options, drawn, self._session.tasks)
        self._chat = AgentChat()
        self._session.begin(self._index, inner_seed)
        self._is_live = True
        self._read_call()
        return self._chat.shown(), {**self._info(), "replaced": dict(self._session.replaced)}

    def step(self, action: Any) -> tuple[Chat, float, bool, bool, dict[str, Any]]:
        """Give the program a reply, and wait until it calls the model again or ends."""
        if not self._is_live:
            raise ResetNeeded(f"{self.name}: the episode is over; call reset")
        session, reply = self._session, reply_of(action)
        session.catch_up()
        said = session.message_of(self._agent, reply)
        self._is_live = False
        session.answer({self._agent: reply})
        self._chat.append_reply(said)
        if session.ending is not None:
            reward, truncated, info, events = ending_of(session.ending, self._agent)
            self.emit(*events)
            self._show()
            return self._chat.shown(), reward, not truncated, truncated, {**self._info(), **info}
        self._is_live = True
        self._read_call()
        return self._chat.shown(), 0.0, False, False, self._info()

    def _read_call(self) -> None:
        call = self._session.open_calls[self._agent].request
        self.emit(*self._chat.update(call.chat(), call.tools, call.sampling))
        self._show()

    def _info(self) -> dict[str, Any]:
        return {"index": self._index, **self._chat.info()}

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
        package = self._session.package
        return {
            "index": self._index,
            "tasks": self._session.tasks,
            "hub_id": str(package.hub_id),
            "sha256": package.sha256,
        }

    def close(self) -> None:
        """End the program with all its processes."""
        self._is_live = False
        self._session.close()


def index_in(name: str, options: dict[str, Any] | None, drawn: int, tasks: int) -> int:
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


def ending_of(ending: Ending, agent: str) -> tuple[float, bool, dict[str, Any], list[Event]]:
    """Return an agent's part of the end: reward, truncated, what the info gets, and events."""
    values = ending.metrics.get(agent, {})
    numbers = {name: value for name, value in values.items() if value is not None}
    events = [metrics(**numbers)] if numbers else []
    info = {"metrics": dict(values), "stop": ending.stops.get(agent)}
    return ending.rewards[agent], ending.truncated.get(agent, False), info, events
