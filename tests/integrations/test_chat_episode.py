"""An episode as a chat: prompts, replies, rewards, refused replies, limits, and faults, which are no rewards."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import pytest

import envweave_gym
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.integrations.chat_episode import ChatEpisode, ChatRules, Ending, EpisodeLost

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


def test_the_prompt_is_that_of_the_seed_and_the_right_letter_earns_the_reward():
    prompts, rewards = set[str](), list[float]()
    for letter in "ABCD":
        episode = ChatEpisode(MCQ, seed=3)
        prompts.add(episode.begin()[0]["content"])
        turn = episode.reply(f"<think>hm</think> {letter}")
        assert turn.ending is Ending.COMPLETED
        assert turn.metrics["invalid_reply"] == 0
        rewards.append(turn.reward)
        episode.close()
    assert len(prompts) == 1
    assert sorted(rewards) == [0.1, 0.1, 0.1, 1.0]


def test_a_reply_without_an_action_ends_the_episode_at_the_price_of_the_rules():
    episode = ChatEpisode(MCQ, 0, rules=ChatRules(invalid_reward=-0.5))
    episode.begin()
    turn = episode.reply("no idea")
    assert (turn.reward, turn.ending, turn.metrics) == (-0.5, Ending.PARSE_ERROR, {"invalid_reply": 1.0})


def test_the_model_is_told_why_and_asked_again_as_often_as_the_rules_say():
    episode = ChatEpisode(MCQ, 0, rules=ChatRules(invalid_replies=1))
    episode.begin()
    turn = episode.reply("no idea")
    assert (turn.reward, turn.ending) == (0.0, None)
    assert [message["role"] for message in episode.history.messages] == ["user", "assistant", "user"]
    assert "no idea" in episode.history.messages[-1]["content"]
    assert episode.reply("still none").ending is Ending.PARSE_ERROR


def test_an_environment_without_messages_shows_its_observations():
    episode = ChatEpisode(partial(fragile, "never"))
    assert episode.begin() == [{"role": "user", "content": "0"}]
    assert episode.reply("1").ending is None
    assert [message["content"] for message in episode.history.messages] == ["0", "1", "1"]
    assert episode.reply("0").ending is Ending.COMPLETED


def test_replies_are_limited():
    episode = ChatEpisode(partial(fragile, "never"), rules=ChatRules(max_turns=1))
    episode.begin()
    assert episode.reply("1").ending is Ending.MAX_TURNS


@pytest.mark.parametrize(("on_fault", "error"), [("truncate", EpisodeLost), ("raise", RuntimeError)])
def test_a_lost_episode_raises_and_has_no_reward(on_fault: str, error: type[Exception]):
    episode = ChatEpisode(partial(fragile, "step", on_fault=on_fault))
    episode.begin()
    episode.reply("1")
    with pytest.raises(error, match="the simulator fell over"):
        episode.reply("1")


def test_an_episode_is_closed_once():
    made = list[Any]()

    def make() -> Any:
        made.append(fragile("never"))
        return made[0]

    episode = ChatEpisode(make)
    episode.close()
    assert made == []
    episode.begin()
    episode.close()
    episode.close()
    assert made[0].unwrapped.closed == 1


def test_a_game_is_refused_by_name_of_the_right_adapter():
    with pytest.raises(InvalidArgument, match="adapter of games"):
        ChatEpisode(partial(envweave_gym.make, "envweave/KuhnPoker-v0")).begin()


@pytest.mark.parametrize("wrong", [{"max_turns": 0}, {"invalid_replies": -1}, {"max_turns": 1.5}])
def test_rules_out_of_range_are_refused_by_name(wrong: dict[str, Any]):
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        ChatRules(**wrong)
