"""An environment on a server of the Open Reward Standard (ORS), whose actions are calls of its tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from gymnasium.spaces import Dict

from envweave_gym.core.config import configured
from envweave_gym.core.faults import InvalidAction, InvalidArgument, NotAvailable, nearest, shown
from envweave_gym.core.secret_reference import Secret, read_reference
from envweave_gym.core.spaces import Json, Unicode
from envweave_gym.envs.tasks.task_env import TASK_OPTIONS, TaskEnv
from envweave_gym.episode.message import message
from envweave_gym.hubs.ors.ors_client import OrsClient
from envweave_gym.hubs.ors.ors_config import OrsConfig
from envweave_gym.hubs.ors.ors_messages import ToolSpec, content_of, text_of

_NAME = "envweave/ORS-v0"
MAX_TEXT, MAX_INPUT = 1 << 20, 1 << 20  # characters
_CALL = re.compile(r"(?:<tool_call>|```\w*\n)?(.*?)(?:</tool_call>|```)?", re.DOTALL)
Action = dict[str, Any]


class ORSEnv(TaskEnv[int, str, Action]):
    """Environment that opens a session of an ORS server for each episode, and calls one tool a step.

    An action is ``{"name": tool, "input": {…}}``; ``info["tools"]`` of the reset describes the tools as chat APIs take
    them. The reward is that of the tool's output, and its ``finished`` ends the episode. A wrong input is an
    observation with the server's error (``info["error"]``). A tool that raises, a lost session, and a reply that is
    not in the protocol are faults.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1, "reset_options": TASK_OPTIONS}
    name = _NAME

    @configured(OrsConfig)
    def __init__(self, config: OrsConfig) -> None:
        self.config, self.render_mode = config, config.render_mode
        self.observation_space = Unicode(MAX_TEXT)
        self.action_space = Dict({"name": Unicode(256), "input": Json(MAX_INPUT)})
        self._client = OrsClient(config.url, _token(config), config.timeout)
        try:
            self._env, split, count = _tasks_of(self._client, config)
        except BaseException:
            self._client.close()
            raise
        super().__init__(range(count), dataset=f"{self._client.url}/{self._env}", split=split)
        self._tools: dict[str, ToolSpec] = {}
        self._text = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Open a session for the task that the seed draws, or the one named in ``options``."""
        index = self.choose(seed, options)
        blocks, tools = self._client.begin(self._env, self.split, index)
        self._tools = {tool.name: tool for tool in tools}
        self.emit(message("user", content_of(blocks)))
        self._text = text_of(blocks)
        return self._text, {**self._info(), "tools": [tool.as_function() for tool in tools]}

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Call a tool."""
        name, given = action["name"], action["input"]
        if not isinstance(name, str) or name not in self._tools or not isinstance(given, dict):
            raise InvalidAction(
                f"{_NAME}: {shown(action)} calls no tool with an object as input; there are {', '.join(self._tools)}"
            )
        reply = self._client.call(self._env, name, given)
        output = reply.output
        if output is None:
            self._text = reply.error or ""
            self.emit(message("user", self._text))
            return self._text, 0.0, False, False, {**self._info(), "error": self._text}
        self._text = text_of(output.blocks)
        self.emit(message("user", content_of(output.blocks)))
        info = {**self._info(), "metadata": output.metadata or {}}
        return self._text, output.reward or 0.0, output.finished, False, info

    def _info(self) -> dict[str, Any]:
        return {**self.task_info(), "error": ""}

    def parse_action(self, text: str, agent: str | None = None) -> Action:
        """Parse a call: ``{"name": …, "arguments": {…}}`` as models write it, also fenced or in ``<tool_call>``."""
        found = _CALL.fullmatch(text.strip())
        try:
            call = json.loads(found[1] if found else text)
            given = call.get("arguments", call.get("input", {}))
            name = call["name"]
        except (ValueError, AttributeError, LookupError, RecursionError):
            form = '{"name": "…", "arguments": {…}}'
            raise InvalidAction(f"{shown(text)} is no call of a tool; answer with {form}") from None
        if not isinstance(name, str) or name not in self._tools:
            raise InvalidAction(f"{shown(name)} is no tool; there are {', '.join(self._tools)}")
        return {"name": name, "input": given}

    def render(self) -> Any:
        """Return the last observation."""
        return self._text if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Delete the session."""
        self._client.close()

    def __reduce__(self) -> tuple[type[ORSEnv], tuple[OrsConfig]]:
        # A copy has a session of its own, and begins with a reset.
        return type(self), (self.config,)


def _token(config: OrsConfig) -> Secret:
    if config.token is None:
        return Secret()
    try:
        return Secret(read_reference(config.token))
    except (KeyError, OSError, ValueError) as error:
        raise InvalidArgument(f"token={config.token!r} leads to no secret: {type(error).__name__}") from None


def _tasks_of(client: OrsClient, config: OrsConfig) -> tuple[str, str, int]:
    """Return the environment, the split and its number of tasks."""
    try:
        env = _chosen("env", config.env, client.environments())
        split = _chosen("split", config.split, client.splits(env))
        count = client.count(env, split)
    except OSError as error:
        raise NotAvailable(f"{client.url} is no ORS server that answers: {error}") from error
    if count < 1:
        raise InvalidArgument(f"split={split!r} of {env} has no tasks; give another split")
    return env, split, count


def _chosen(argument: str, given: str | None, known: Iterable[str]) -> str:
    names = list(known)
    if not names:
        raise NotAvailable(f"the server has no {argument}")
    if given is None:
        return names[0]
    if given not in names and given.lower() in names:  # servers list their environments in lower case
        return given.lower()
    if given not in names:
        there_are = ", ".join(map(repr, names))
        raise InvalidArgument(
            f"{argument}={shown(given)} is unknown{nearest(given, names)}; there are {there_are}"
        )
    return given
