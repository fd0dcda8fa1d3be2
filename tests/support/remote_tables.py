"""Games for tests of remote games, and how two of them are played side by side."""

from __future__ import annotations

import os
import time
from typing import Any

import pettingzoo
from every_id import GAME_IDS
from gymnasium.spaces import Discrete
from toy_games import CRASH, Whisper

import envweave_gym as ew
from envweave_gym.remote.games import RemoteAEC, RemoteParallel
from envweave_gym.testing.traces import Sampler, mask_of, same

NAP = 1.5
"""So many seconds :class:`Moody` thinks about action 1."""


class Moody(Whisper):
    """A whisper that action 1 makes late and 3 ends with its process; its picture and global view fail."""

    def step(self, action: Any) -> None:
        if action == 1:
            time.sleep(NAP)
        if action == CRASH:
            os._exit(3)
        super().step(action)

    def render(self) -> str:
        raise OSError("no canvas")

    def state(self) -> Any:
        raise OSError("no overview")


def _register() -> dict[str, str]:
    games = {
        "Moody": ("aec", "remote_tables:Moody"),
        **{name: ("aec", f"toy_games:{name}") for name in ("Whisper", "Auction", "Relay")},
        "Matching": ("parallel", "toy_games:Matching"),
    }
    for name, (kind, path) in games.items():
        pettingzoo.register(kind, f"tests/{name}-v0", path)
    return {name: f"remote_tables:tests/{name}-v0" for name in games}


TOYS = _register()
WHISPER, MOODY, AUCTION, RELAY = (TOYS[name] for name in ("Whisper", "Moody", "Auction", "Relay"))
KUHN, REVIEW, RACE = OURS = [env_id for env_id in GAME_IDS if not env_id.startswith("envweave/REPL")]
PLAYABLE = [*OURS, WHISPER, AUCTION, RELAY, TOYS["Matching"]]
REMOTE: dict[str, Any] = {"aec": RemoteAEC, "parallel": RemoteParallel}


def pair(env_id: str, api: Any, url: str, **kwargs: Any) -> tuple[Any, Any]:
    """The game in this process, and on the server."""
    return ew.make(env_id, api=api, **kwargs), REMOTE[api](env_id, url, **kwargs)


def expect_same(here: Any, there: Any, what: str) -> None:
    assert same(here, there), f"{what}: {here!r} here, {there!r} there"


def calm(env: Any, agent: str, sampler: Sampler, mask: Any = None) -> Any:
    """An action that no toy crashes of: theirs are the last ones of four or five."""
    space = env.action_space(agent)
    action = sampler.sample(space, agent, mask)
    return action % 3 if space in (Discrete(4), Discrete(5)) else action


def expect_same_turns(here: Any, there: Any, *, most: int = 60) -> None:
    """Play the episode that has begun in both to its end, and compare all that can be seen of it."""
    sampler = Sampler()
    for _ in range(most):
        for name in ("agents", "rewards", "_cumulative_rewards", "terminations", "truncations", "infos"):
            expect_same(getattr(here, name), getattr(there, name), name)
        if not here.agents:
            return
        expect_same(here.agent_selection, there.agent_selection, "agent_selection")
        for agent in here.agents:
            expect_same(here.observe(agent), there.observe(agent), f"what {agent} observes")
        reported = here.last()
        expect_same(reported, there.last(), "last()")
        agent = here.agent_selection
        mask = mask_of(reported[0], reported[4])
        action = None if reported[2] or reported[3] else calm(here, agent, sampler, mask)
        for env in (here, there):
            env.step(action)


def expect_same_rounds(here: Any, there: Any, begun: tuple[Any, Any], *, most: int = 60) -> None:
    """The same of games that are played all together; ``begun`` is what their resets said."""
    expect_same(*begun, "reset()")
    sampler, infos = Sampler(), begun[0][1]
    for _ in range(most):
        expect_same(here.agents, there.agents, "agents")
        if not here.agents:
            return
        asked = [agent for agent in here.agents if infos[agent]["active"]]
        actions = {agent: calm(here, agent, sampler) for agent in asked}
        mine, theirs = here.step(actions), there.step(actions)
        expect_same(mine, theirs, "step()")
        infos = mine[4]


def talk(env: Any, words: list[Any]) -> None:
    """Let the selected agents say this, one after the other."""
    for word in words:
        env.step(word)
