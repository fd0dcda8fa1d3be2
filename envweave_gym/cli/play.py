"""``envweave play``: people play one episode, at one keyboard.

Every environment is played as a game; a Gymnasium environment is one with a single seat. ``info["stream"]``
says which agents must act, and has the events of a step. Players see only events that their agents may see;
at a terminal each gets a clean screen. The last line is a verdict: success or not if the environment says so,
else how the episode ended.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete, Space, Text

from envweave_gym.cli.info import card_named, make_single
from envweave_gym.core.faults import InvalidAction
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.protocols import AGENT
from envweave_gym.core.reply_parsing import parse_action
from envweave_gym.core.spaces import Json
from envweave_gym.episode.stream import Event, EventKind, Stream, stream_of

_CLEAR = "\033[2J\033[3J\033[H"  # clears the screen and the scrollback, and goes to the top left
_QUOTES = '"""'
_FENCE = re.compile(r"\s*(```+)[^`]*$")
_SUCCESS = ("correct", "resolved", "solved")
"""Names of metrics of our environments that say whether an episode was a success."""
_SILENT = {EventKind.EPISODE_START, EventKind.EPISODE_END, EventKind.METRICS, EventKind.IGNORED}
"""Kinds of events that are not printed."""


class _Quit(Exception):
    """Raised when a player types ``q``."""


def run(args: argparse.Namespace) -> int:
    """Play one episode until it ends or a player quits; return 1 if it was lost to a fault."""
    env = _make(args.id, dict(args.kwarg))
    card = card_named(args.id)
    print(f"{card.id}: {card.doc}" if card else args.id)
    seats = Seats(env)
    try:
        with contextlib.suppress(_Quit):
            seats.play(args.seed)
    finally:
        env.close()
    for agent, total in seats.totals.items():
        print(f"total reward of {agent}: {total:g}" if len(seats.totals) > 1 else f"total reward: {total:g}")
    print(f"verdict: {seats.verdict()}")
    return 1 if seats.lost else 0


def _make(name: str, kwargs: dict[str, Any]) -> Any:
    """Make the environment; if it renders text and is no game, with ``render_mode="ansi"``."""
    env = make_single(name, kwargs)
    drawn = isinstance(env, gym.Env) and "ansi" in (env.metadata.get("render_modes") or ())
    if not drawn or "render_mode" in kwargs:
        return env
    env.close()
    return make_single(name, {**kwargs, "render_mode": "ansi"})


def _as_game(env: Any) -> Any:
    if isinstance(env, gym.Env):
        return _Solo(env)
    from envweave_gym.wrappers.turn_based_parallel import parallel_form

    return parallel_form(env)


class _Solo:
    """Adapter of a Gymnasium environment to a parallel game with one agent."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env, self.agents = env, [AGENT]

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        observation, info = self.env.reset(seed=seed)
        return {AGENT: observation}, {AGENT: info}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        return tuple({AGENT: value} for value in self.env.step(actions[AGENT]))

    def action_space(self, agent: str) -> Space[Any]:
        return self.env.action_space


class Seats:
    """One episode of a game whose players share a keyboard."""

    def __init__(self, env: Any) -> None:
        self.env, self.game = env, _as_game(env)
        self.totals: dict[str, float] = {}
        self.lost = False
        """Whether the episode ended in a fault."""
        self.steps, self.ended = 0, ""
        """The count of steps so far, and ``terminated`` or ``truncated`` once the episode is over."""
        self._metrics: dict[str, Any] = {}
        self._news: dict[str, dict[int, Event]] = {}
        self._shown: dict[str, int] = {}
        self._seated: str | None = None

    def play(self, seed: int | None) -> None:
        """Play an episode: let each agent with an open ``act`` request act, until there is none."""
        observations, infos = self.game.reset(seed=seed)
        self.totals = dict.fromkeys(self.game.agents, 0.0)
        self._introduce(infos)
        while agents := self._collect(infos):
            actions = {agent: self._prompt(agent, observations[agent]) for agent in agents}
            try:
                observations, rewards, terminations, truncations, infos = self.game.step(actions)
            except InvalidAction as error:
                print("not possible:", _one_line(error))
                continue
            self.steps += 1
            over = {"terminated": terminations, "truncated": truncations}
            self.ended = next((how for how, agents in over.items() if any(agents.values())), "")
            for agent, reward in rewards.items():
                self.totals[agent] = self.totals.get(agent, 0.0) + float(reward)
        self._conclude(observations)

    def _introduce(self, infos: Mapping[str, Any]) -> None:
        names = (getattr(self.env, "metadata", None) or {}).get("action_names", ())
        spaces = {agent: self.game.action_space(agent) for agent in self.game.agents}
        hints = {f"an action of {agent}": hint(space, names) for agent, space in spaces.items()}
        if len(set(hints.values())) == 1:
            hints = {"an action": next(iter(hints.values()))}
        record = getattr(self.game, "record", None)  # the agents of a game do not see the seed
        events = _common_stream(infos).events if record is None else record.events
        starts = [event.data["seed"] for event in events if event.kind == EventKind.EPISODE_START]
        seed = ["no seed" if one is None else f"seed {one}" for one in starts]
        print("; ".join([*seed, *(f"{who} is {what}" for who, what in hints.items()), "q quits"]))

    def _collect(self, infos: Mapping[str, Any]) -> tuple[str, ...]:
        """Store the new events of each agent until they are shown; return the agents that must act."""
        for agent, info in infos.items():
            shown, news = self._shown.get(agent, -1), self._news.setdefault(agent, {})
            news.update({event.seq: event for event in stream_of(info).events if event.seq > shown})
            for event in stream_of(info).events:
                if event.kind == EventKind.METRICS:
                    self._metrics |= event.data
        self.lost = any("fault" in info for info in infos.values())
        return _common_stream(infos).agents()

    def _prompt(self, agent: str, observation: Any) -> Any:
        """Show an agent its new events, then read lines until one parses as an action."""
        self._seat(agent)
        news = self._news.pop(agent, {})
        self._shown[agent] = max(news, default=self._shown.get(agent, -1))
        self._show(news.values(), agent, observation)
        while True:
            try:
                reply = _read(f"{agent}> ")
                if _is_text(self.game.action_space(agent)):
                    reply = _whole(reply)
                return parse_action(self.env, reply, agent)
            except ValueError as error:
                print("not an action:", _one_line(error))

    def verdict(self) -> str:
        """Return a line that says how the episode ended, with its metrics."""
        known = [bool(self._metrics[name]) for name in _SUCCESS if name in self._metrics]
        how = ("success" if all(known) else "no success") if known else self.ended
        how = (
            "lost to a fault, so its rewards count for nothing"
            if self.lost
            else how or "not played to the end"
        )
        numbers = ", ".join(f"{name} {value}" for name, value in self._metrics.items())
        count = f"{self.steps} step{'' if self.steps == 1 else 's'}"
        return f"{how} ({count}; {numbers})" if numbers else f"{how} ({count})"

    def _seat(self, agent: str) -> None:
        """Let an agent use the terminal; clear the screen first if another player's hidden events are on it."""
        shared = len(self.totals) > 1 and sys.stdin.isatty() and sys.stdout.isatty()
        if shared and agent != self._seated:
            _read(f"{_CLEAR}{agent}, it is your turn: press Enter ")
        self._seated = agent

    def _show(self, events: Iterable[Event], agent: str, observation: Any) -> None:
        """Print the events and the observation, without texts that a printed message contains already."""
        said: list[str] = []
        for event in events:
            _print_event(event, agent)
            if event.kind == EventKind.MESSAGE:
                said.append(event.data["content"])
        if isinstance(self.env, gym.Env) and self.env.render_mode == "ansi":
            observation = str(self.env.render()).strip("\n")
        if isinstance(observation, Mapping):
            observation = {key: value for key, value in observation.items() if not _is_said(value, said)}
        if not _is_said(observation, said):
            print(as_text(observation))

    def _conclude(self, observations: Mapping[str, Any]) -> None:
        """Show the end of the episode.

        All players of a game look on, so only events visible to all are printed.
        """
        if isinstance(self.env, gym.Env):
            self._show(self._news.get(AGENT, {}).values(), AGENT, observations[AGENT])
            return
        news = {seq: event for own in self._news.values() for seq, event in own.items()}
        for _, event in sorted(news.items()):
            if all(map(event.visible_to, self.totals)):
                _print_event(event, None)


def _print_event(event: Event, viewer: str | None) -> None:
    line = event_line(event, viewer)
    if line is not None:
        print(line)


def _is_said(value: Any, said: list[str]) -> bool:
    return isinstance(value, str) and any(value in text for text in said)


def _common_stream(infos: Mapping[str, Any]) -> Stream:
    """Return the stream of any one agent, for its open requests, which are the same for all agents."""
    return stream_of(next(iter(infos.values()), {}))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _read(prompt: str) -> str:
    """Read a line from the keyboard; a ``q`` ends the game."""
    line = _line(prompt)
    if line.strip() == "q":
        raise _Quit
    return line


def _line(prompt: str) -> str:
    """Read a line from stdin. If stdin is no terminal, print the line too, so that the transcript is complete."""
    try:
        line = input(prompt)
    except EOFError:
        print()
        raise _Quit from None
    if not sys.stdin.isatty():
        print(line)
    return line


def _whole(first: str) -> str:
    """Read the rest of a text whose first line opens quotes or a Markdown fence, up to the closing line.

    The quotes are not part of the text. A fence is, as a model's reply would contain it.
    """
    fence = _FENCE.match(first)
    if first.strip() != _QUOTES and fence is None:
        return first
    closing = _QUOTES if fence is None else fence[1]
    lines: list[str] = []
    while (line := _line("...> ")).strip() != closing:
        lines.append(line)
    return "\n".join(lines if fence is None else [first, *lines, closing])


def _is_text(space: Space[Any]) -> bool:
    return isinstance(space, Text) and not isinstance(space, Json)


def event_line(event: Event, viewer: str | None) -> str | None:
    """Return an event as a line for ``viewer`` (``None``: for all), or ``None`` if it is not printed."""
    data = event.data
    if event.kind in _SILENT or (event.kind == EventKind.ACT and event.agent == viewer):
        return None
    if event.kind == EventKind.MESSAGE:
        return f"{event.agent or data['role']}: {data['content']}"
    if event.kind == EventKind.REWARD:
        return f"reward: {float(data['reward']):g}"
    if event.kind == EventKind.FAULT:
        return f"fault ({data['kind']}): {' '.join(data['message'].split())}"
    if event.kind == EventKind.ACT:
        return f"{event.agent} acts: {_json(data['action'])}"
    return " ".join(filter(None, (event.agent, f"{event.kind}:", _json(data))))


def as_text(observation: Any) -> str:
    """Return an observation as text for people."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, Mapping):
        return "\n".join(_entry(str(key), as_text(value)) for key, value in observation.items())
    if isinstance(observation, np.ndarray):
        return np.array2string(observation, precision=4, threshold=40, separator=", ")
    return _json(observation)


def _json(value: Any) -> str:
    return json.dumps(jsonable(value), ensure_ascii=False)


def _entry(key: str, text: str) -> str:
    return f"{key}:\n{textwrap.indent(text, '  ')}" if "\n" in text else f"{key}: {text}"


def hint(space: Space[Any], names: Sequence[str] = ()) -> str:
    """Return a hint at the input for ``space``; ``names`` are the environment's names of its choices."""
    if _is_text(space):
        return f"any text, of several lines between two lines {_QUOTES} or in a ``` fence"
    if isinstance(space, Discrete) and len(names) == space.n:
        return ", ".join(f"{space.start + i} ({name})" for i, name in enumerate(names))
    if isinstance(space, Discrete):
        return f"an integer from {space.start} to {space.start + space.n - 1}"
    example = copy.deepcopy(space)
    example.seed(0)
    return "JSON like " + textwrap.shorten(json.dumps(jsonable(example.sample())), 80, placeholder=" …")
