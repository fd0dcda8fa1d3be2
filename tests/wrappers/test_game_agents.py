"""Agents who do not play: whoever asks for one is told which game this is, and who plays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test.example_envs import generated_agents_env_v0, generated_agents_parallel_v0
from pettingzoo.utils import BaseParallelWrapper, BaseWrapper
from toy_games import BOTH, matching, whisper

import envweave_gym as ew
from envweave_gym.core.faults import InvalidAction, InvalidArgument
from envweave_gym.envs.games import code_review, kuhn_poker, line_race
from envweave_gym.wrappers import AECStream, ParallelStream

TURNS: dict[str, Callable[[], Any]] = {
    "envweave/KuhnPoker-v0": kuhn_poker.env,
    "envweave/CodeReview-v0": lambda: pettingzoo.make("aec", "envweave/CodeReview-v0"),
    "envweave/LineRace-v0": lambda: BaseWrapper(line_race.env()),
}
TOGETHER: dict[str, Callable[[], Any]] = {
    "envweave/KuhnPoker-v0": lambda: ew.make("envweave/KuhnPoker-v0"),
    "envweave/CodeReview-v0": code_review.parallel_env,
    "envweave/LineRace-v0": lambda: BaseParallelWrapper(line_race.parallel_env()),
}
STRANGERS = ["nobody", None, 3, ["player_0"], "player_0 "]


def reported_by(game: Any, env_id: str) -> str:
    agents = ", ".join(map(repr, game.possible_agents))
    return rf"^{env_id}: .* is no agent; there are {agents}$"


@pytest.mark.parametrize("stranger", STRANGERS, ids=repr)
@pytest.mark.parametrize("env_id", TURNS)
def test_in_turns_a_stranger_neither_observes_nor_has_spaces(env_id: str, stranger: Any) -> None:
    game = TURNS[env_id]()
    game.reset(seed=0)
    for call in (game.observe, game.observation_space, game.action_space):
        with pytest.raises(InvalidArgument, match=reported_by(game, env_id)):
            call(stranger)
    agent = game.agent_selection
    assert game.observe(agent) in game.observation_space(agent)


@pytest.mark.parametrize("stranger", STRANGERS, ids=repr)
@pytest.mark.parametrize("env_id", TOGETHER)
def test_together_a_stranger_has_no_spaces(env_id: str, stranger: Any) -> None:
    game = TOGETHER[env_id]()
    for call in (game.observation_space, game.action_space):
        with pytest.raises(InvalidArgument, match=reported_by(game, env_id)):
            call(stranger)


@pytest.mark.parametrize("env_id", TOGETHER)
def test_together_a_stranger_does_not_act_and_nothing_is_done(env_id: str) -> None:
    game = TOGETHER[env_id]()
    game.reset(seed=0)
    actions = {agent: game.action_space(agent).sample() for agent in game.agents}
    for stranger in ("nobody", 3, None):
        with pytest.raises(InvalidAction, match=reported_by(game, env_id)):
            game.step({**actions, stranger: 0})
    assert ew.state_of(game)["step_count"] == 0
    game.step(actions)
    assert ew.state_of(game)["step_count"] == 1


def test_a_done_agent_is_no_unknown_agent() -> None:
    game = whisper()
    game.reset(seed=0)
    game.step(2)
    game.step(None)
    assert "player_0" not in game.agents
    assert game.observe("player_0") in game.observation_space("player_0")
    together = matching()
    together.reset(seed=2)
    together.step(BOTH)
    assert together.action_space("player_1").contains(0)


def test_a_game_that_makes_its_agents_as_it_goes_answers_for_itself() -> None:
    for game in (
        AECStream(generated_agents_env_v0.env()),
        ParallelStream(generated_agents_parallel_v0.parallel_env()),
    ):
        game.reset(seed=0)
        agent = game.agents[0]
        assert game.observation_space(agent) is game.env.observation_space(agent)
        assert game.action_space(agent).contains(game.action_space(agent).sample())
