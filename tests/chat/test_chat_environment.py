"""An episode as a chat: prompts, replies, rewards, refused replies, limits, and faults, which are no rewards."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import pytest

import envweave_gym
from envweave_gym.chat import ChatGame, ChatRules, ChatTurn, Ending, EpisodeLost
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.core.protocols import AGENT

MCQ = partial(envweave_gym.make, "envweave/GSM8KMCQ-v0", dataset="synthetic")


class Fragile(gym.Env[Any, Any]):
    """Two steps, the second of which fails if ``breaks``."""

    def __init__(self, breaks: str) -> None:
        self.observation_space = self.action_space = gym.spaces.Discrete(2)
        self.breaks, self.closed = breaks, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return 0, {}

    def step(self, action: int) -> Any:
        self.steps += 1
        if self.steps == 2 and self.breaks == "step":
            raise RuntimeError("the simulator fell over")
        return self.steps % 2, 0.25, self.steps == 2, False, {}

    def close(self) -> None:
        self.closed += 1


def fragile(breaks: str, **kwargs: Any) -> Any:
    envweave_gym.register("local://fragile-chat", factory=partial(Fragile, breaks))
    return envweave_gym.make("local://fragile-chat", **kwargs)


def begun(make: Any, seed: int | None = None, **settings: Any) -> ChatGame:
    game = ChatGame(make(), **settings)
    game.reset(seed)
    return game


def replied(game: ChatGame, text: str) -> ChatTurn:
    game.reply(AGENT, text)
    return game.take_turn(AGENT)


def contents(game: ChatGame) -> list[str]:
    return [message["content"] for message in game.messages(AGENT)]


def test_the_prompt_is_that_of_the_seed_and_the_right_letter_earns_the_reward():
    prompts, rewards = set[str](), list[float]()
    for letter in "ABCD":
        game = begun(MCQ, 3)
        assert game.roles == (AGENT,)
        prompts.add(contents(game)[0])
        turn = replied(game, f"<think>hm</think> {letter}")
        assert turn.ending is Ending.COMPLETED
        assert turn.metrics["invalid_reply"] == 0
        assert (turn.refused, turn.actions, turn.trainable) == (0, 1, True)
        rewards.append(turn.reward)
        game.close()
    assert len(prompts) == 1
    assert sorted(rewards) == [0.1, 0.1, 0.1, 1.0]


def test_a_game_plays_one_episode_after_another():
    game = begun(MCQ, 3)
    first = contents(game)
    replied(game, "no idea")
    game.reset(3)
    assert contents(game) == first
    assert game.to_reply() == [AGENT]
    assert game.take_turn(AGENT).refused == 0


def test_a_reply_without_an_action_ends_the_episode_at_the_price_of_the_rules():
    game = begun(MCQ, 0, rules=ChatRules(invalid_reward=-0.5))
    turn = replied(game, "no idea")
    assert (turn.reward, turn.ending, turn.metrics) == (-0.5, Ending.PARSE_ERROR, {"invalid_reply": 1.0})
    assert (turn.refused, turn.actions, turn.trainable) == (1, 0, True)
    assert game.to_reply() == []


def test_the_model_is_told_why_and_asked_again_as_often_as_the_rules_say():
    game = begun(MCQ, 0, rules=ChatRules(invalid_replies=1))
    turn = replied(game, "no idea")
    assert (turn.reward, turn.ending) == (0.0, None)
    assert [message["role"] for message in game.messages(AGENT)] == ["user", "assistant", "user"]
    assert "no idea" in contents(game)[-1]
    assert replied(game, "still none").ending is Ending.PARSE_ERROR


def test_an_environment_without_messages_shows_its_observations():
    game = begun(partial(fragile, "never"))
    assert contents(game) == ["Answer with one whole number from 0 to 1, and nothing else.", "0"]
    assert replied(game, "1").ending is None
    assert contents(game)[2:] == ["1", "1"]
    assert replied(game, "0").ending is Ending.COMPLETED


def test_messages_that_were_returned_do_not_change():
    game = begun(partial(fragile, "never"))
    before = game.messages(AGENT)
    game.reply(AGENT, "1")
    assert [len(before), len(game.messages(AGENT))] == [2, 4]


def test_replies_are_limited():
    game = begun(partial(fragile, "never"), rules=ChatRules(max_turns=1))
    assert replied(game, "1").ending is Ending.MAX_TURNS


@pytest.mark.parametrize(("on_fault", "error"), [("truncate", EpisodeLost), ("raise", RuntimeError)])
def test_a_lost_episode_raises_and_has_no_reward(on_fault: str, error: type[Exception]):
    game = begun(partial(fragile, "step", on_fault=on_fault))
    game.reply(AGENT, "1")
    with pytest.raises(error, match="the simulator fell over"):
        game.reply(AGENT, "1")


def test_an_environment_is_closed_once():
    game = begun(partial(fragile, "never"))
    game.close()
    game.close()
    assert game.env.unwrapped.closed == 1


def test_a_vector_is_no_chat():
    with pytest.raises(InvalidArgument, match="leave num_envs out"):
        ChatGame(envweave_gym.make("envweave/Echo-v0", num_envs=2))


@pytest.mark.parametrize("wrong", [{"max_turns": 0}, {"invalid_replies": -1}, {"max_turns": 1.5}])
def test_rules_out_of_range_are_refused_by_name(wrong: dict[str, Any]):
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        ChatRules(**wrong)
