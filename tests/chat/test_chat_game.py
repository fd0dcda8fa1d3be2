"""A game as chats: each agent reads its own messages, and what one agent cannot do ends the game for all."""

from __future__ import annotations

from typing import Any

import pytest
from gymnasium.spaces import Discrete
from pettingzoo import ParallelEnv

import envweave_gym
from envweave_gym.chat import ChatGame, ChatRules, Ending
from envweave_gym.core.faults import InvalidAction, InvalidArgument

FIRST, SECOND = "player_0", "player_1"


def kuhn(api: str = "parallel", **rules: float) -> ChatGame:
    game = ChatGame(envweave_gym.make("envweave/KuhnPoker-v0", api=api), ChatRules(**rules))
    game.reset(0)
    return game


@pytest.mark.parametrize("api", ["aec", "parallel"])
def test_players_reply_in_turn_and_read_only_their_own_cards(api: str):
    game = kuhn(api)  # the jack against the king
    assert game.must_reply(FIRST)
    assert not game.must_reply(SECOND)
    assert "jack" in game.messages(FIRST)[0]["content"].rpartition("your card")[2]
    assert "king" in game.messages(SECOND)[0]["content"].rpartition("your card")[2]
    game.reply(FIRST, "I bet.")
    assert game.must_reply(SECOND)
    assert (game.take_turn(FIRST).reward, game.ending(FIRST)) == (0.0, None)
    game.reply(SECOND, "call")
    won, lost = game.take_turn(SECOND), game.take_turn(FIRST)
    assert (won.reward, won.ending, lost.reward, lost.ending) == (
        2.0,
        Ending.COMPLETED,
        -2.0,
        Ending.COMPLETED,
    )
    assert game.take_turn(FIRST).reward == 0.0
    assert [message["role"] for message in game.messages(FIRST)] == ["user", "user", "assistant"]
    game.close()


def test_agents_that_act_at_once_are_all_waited_for():
    game = ChatGame(envweave_gym.make("envweave/LineRace-v0"))
    game.reset(0)
    runners = ["runner_0", "runner_1", "runner_2"]
    assert all(map(game.must_reply, runners))
    before = game.messages("runner_0")
    for runner in runners:
        assert game.must_reply(runner)
        assert game.messages("runner_0")[: len(before)] == before
        game.reply(runner, "1")
    assert all(map(game.must_reply, runners))
    assert [message["role"] for message in game.messages("runner_0")] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


def test_a_reply_without_an_action_ends_the_game_and_costs_only_its_agent():
    game = kuhn(invalid_reward=-3.0)
    game.reply(FIRST, "hello")
    turn = game.take_turn(FIRST)
    assert (turn.reward, turn.ending, turn.metrics["invalid_reply"]) == (-3.0, Ending.PARSE_ERROR, 1.0)
    other = game.take_turn(SECOND)
    assert (other.reward, other.ending) == (0.0, Ending.OTHERS)
    game.reply(SECOND, "bet")  # it was asked before it could know
    assert game.ending(SECOND) is Ending.OTHERS


def test_an_agent_is_asked_again_as_often_as_the_rules_say():
    game = kuhn(invalid_replies=1)
    game.reply(FIRST, "hello")
    assert game.must_reply(FIRST)
    assert game.take_turn(FIRST).metrics["invalid_reply"] == 1.0
    game.reply(FIRST, "check")
    assert game.must_reply(SECOND)


class Forbidding(ParallelEnv[str, Any, Any]):
    """A game of one round, in which the action 0 is forbidden though it is in the space."""

    metadata = {"name": "forbidding"}
    possible_agents = ["left", "right"]

    def observation_space(self, agent: str) -> Any:
        return Discrete(2)

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        if 0 in actions.values():
            raise InvalidAction("0 is forbidden")
        ones, self.agents = dict.fromkeys(self.agents, 1.0), []
        over = dict.fromkeys(ones, True)
        return dict.fromkeys(ones, 0), ones, over, dict.fromkeys(ones, False), {agent: {} for agent in ones}


def test_after_a_move_that_the_game_forbids_its_agents_are_asked_again():
    envweave_gym.register("local://forbidding", factory=Forbidding)
    game = ChatGame(envweave_gym.make("local://forbidding"), ChatRules(max_turns=4, invalid_replies=1))
    game.reset()
    for left, right in (("1", "0"), ("1", "1")):
        game.reply("left", left)
        assert game.must_reply("right")
        game.reply("right", right)
    assert "0 is forbidden" in game.messages("right")[3]["content"]
    assert [game.take_turn(agent).reward for agent in ("left", "right")] == [1.0, 1.0]
    assert game.ending("left") is Ending.COMPLETED


def test_an_agent_that_cannot_go_on_ends_the_game_for_the_others():
    game = kuhn()
    game.leave(FIRST)
    assert game.ending(SECOND) is Ending.OTHERS
    assert not game.must_reply(SECOND)


def test_a_game_ends_when_an_agent_must_reply_more_often_than_the_limit():
    game = kuhn(max_turns=1)
    game.reply(FIRST, "check")
    game.reply(SECOND, "bet")
    assert game.ending(FIRST) is game.ending(SECOND) is Ending.MAX_TURNS


def test_a_game_that_is_over_within_the_limit_is_completed():
    game = kuhn(max_turns=1)
    game.reply(FIRST, "check")
    game.reply(SECOND, "check")
    assert game.ending(FIRST) is game.ending(SECOND) is Ending.COMPLETED


def test_moves_that_are_refused_together_too_often_count_for_nobody():
    envweave_gym.register("local://forbidding", factory=Forbidding)
    game = ChatGame(envweave_gym.make("local://forbidding"), ChatRules(invalid_reward=-1.0))
    game.reset()
    game.reply("left", "1")
    game.reply("right", "0")
    turns = [game.take_turn(role) for role in game.roles]
    assert [(turn.reward, turn.ending, turn.refused, turn.trainable) for turn in turns] == [
        (0.0, Ending.OTHERS, 0, False)
    ] * 2


def test_a_reply_out_of_turn_is_refused():
    with pytest.raises(InvalidArgument, match=r"player_1 has no turn.*'player_0'"):
        kuhn().reply(SECOND, "check")
