"""Hub packages of the library's second generation with several roles, as PettingZoo games."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hub_evaluations import played_game
from hub_v1 import CHAT, Make, evaluated, packages
from pettingzoo import ParallelEnv

import envweave_gym
from envweave_gym.hubs.prime import hub_packages, hub_team
from envweave_gym.hubs.prime.hub_session import declared_agents

if find_spec("verifiers") is None:
    pytest.skip("verifiers is not installed: run make trainers", allow_module_level=True)
pytestmark = pytest.mark.trainers


def by_name(hub_id: str, **kwargs: Any) -> Any:
    return envweave_gym.make(f"prime://{hub_id}", **kwargs)


def unequal(model: str, messages: list[dict[str, Any]]) -> Any:
    return "9" if model == "left" else "4"


def customer(model: str, messages: list[dict[str, Any]]) -> Any:
    if model == "user":
        return "###DONE###" if len(messages) > 3 else "What is three and three?"
    return "6"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("v1")


@pytest.fixture(scope="module")
def make(folder: Path) -> Iterator[Make]:
    with packages(folder) as one:
        yield one


def test_each_role_of_a_game_gets_its_own_reward_of_the_librarys(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    args = {"max_concurrent_agents": None}
    game = make("pair", by_name, **args)
    assert isinstance(game, ParallelEnv)
    totals, rounds = played_game(game, unequal, 1)
    assert rounds == [{"left", "right"}]
    assert totals == {"left": 5.0, "right": -2.5}
    roles = {
        name: {**CHAT, "model": name} for name in ("left", "right")
    }  # the library gives all roles one name
    episode = evaluated("pair", {**args, **roles}, unequal, 1, folder, monkeypatch)
    assert {trace.agent.name: trace.reward for trace in episode.traces} == totals


def test_the_agents_of_a_package_are_known_without_playing_it(make: Make):
    def known(hub_id: str, env_args: dict[str, Any]) -> Any:
        agents = declared_agents(*hub_packages.find_installed(hub_packages.hub_id_of(hub_id)))
        return SimpleNamespace(agents=agents, close=lambda: None)

    assert make("pair", known).agents == ("left", "right")
    assert make("sums", known).agents == ("agent",)


def test_a_user_who_is_simulated_is_an_agent(make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch):
    args = {"id": "user-sim", "persona": "You want: {scenario} Say {done} then."}
    game = make("pair", hub_team.parallel_env, **args)
    totals, rounds = played_game(game, customer, 0)
    assert rounds == [{"user"}, {"assistant"}, {"user"}]
    roles = {name: {**CHAT, "model": name} for name in ("assistant", "user")}
    episode = evaluated("pair", {**args, **roles}, customer, 0, folder, monkeypatch)
    assert {trace.agent.name: trace.reward for trace in episode.traces} == totals
