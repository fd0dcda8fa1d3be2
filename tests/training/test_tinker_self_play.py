"""Self-play with a fake sampler: every agent reads its own messages, and what ends a game is its own doing."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import pettingzoo
import pytest
from absent import needs_module
from fake_tinker import Characters, FakeClient, group, policies
from gymnasium.spaces import Discrete

import envweave_gym
from envweave_gym.chat import ChatGame, ChatRules
from envweave_gym.core.faults import InvalidAction
from envweave_gym.envs.games.kuhn_rules import INFORMATION_SETS
from envweave_gym.training.kuhn_tinker import (
    Move,
    Options,
    advantages_of,
    alpha_at,
    moves_of,
    seeds_of_deals,
    situations,
)
from envweave_gym.training.tinker.datums import TokenRow
from envweave_gym.training.tinker.prompts import Prompts
from envweave_gym.training.tinker.rollouts import EpisodeBatch, Rollouts
from envweave_gym.training.tinker.sampling import PromptRequests

needs_module("tinker", "tinker")
needs_module("jinja2")

BETS = "check or bet."


def passive(prompt: str, seed: int, index: int) -> str:
    return "check" if prompt.rstrip().endswith(f"{BETS}<|im_end|>\n<|im_start|>assistant") else "fold"


def bold(prompt: str, seed: int, index: int) -> str:
    return "bet" if BETS in prompt[-60:] else "call"


def play(client: FakeClient, size: int = 2, api: str = "parallel", **limits: Any) -> EpisodeBatch:
    def make() -> ChatGame:
        return ChatGame(envweave_gym.make("envweave/KuhnPoker-v0", api=api), ChatRules(**limits))

    with Rollouts(make, num_envs=2) as pool:
        return pool.play(group(size), policies(client))


@pytest.mark.parametrize("api", ["parallel", "aec"])
@pytest.mark.parametrize(("reply", "stake"), [(passive, 1.0), (bold, 2.0)])
def test_both_players_of_a_hand_have_rows_rewards_and_messages_of_their_own(
    api: str, reply: Any, stake: float
):
    played = play(FakeClient(reply), api=api)
    for episode in played.episodes:
        first, second = episode.trajectories.values()
        assert (first.agent, second.agent) == ("player_0", "player_1")
        assert first.reward == -second.reward
        assert abs(first.reward) == stake
        for part, other in ((first, second), (second, first)):
            assert part.trainable
            text = "".join(message["content"] for message in part.messages)
            assert f"You are {part.agent}" in text
            assert f"You are {other.agent}" not in text
            assert [len(row.spans) for row in part.rows] == [1]


def test_a_player_that_moves_twice_has_both_moves_in_one_row():
    def trap(prompt: str, seed: int, index: int) -> str:
        first = "You are player_0" in prompt
        return ("check" if first else "bet") if BETS in prompt[-60:] else "call"

    (episode,) = play(FakeClient(trap), size=1).episodes
    assert [len(row.spans) for row in episode.trajectories["player_0"].rows] == [2]
    assert [len(row.spans) for row in episode.trajectories["player_1"].rows] == [1]


def test_only_the_first_move_of_a_group_is_a_shared_request():
    client = FakeClient(passive)
    play(client, size=4)
    assert sorted(request.count for request in client.requests) == [1, 1, 1, 1, 4]
    assert len({request.seed for request in client.requests}) == 5


def test_a_reply_that_is_no_move_costs_its_player_and_teaches_the_other_nothing():
    def confused(prompt: str, seed: int, index: int) -> str:
        return "check" if "You are player_0" in prompt else "hello"

    (episode,) = play(FakeClient(confused), size=1, invalid_reward=-2.0).episodes
    first, second = episode.trajectories["player_0"], episode.trajectories["player_1"]
    assert (second.reward, second.trainable, second.invalid) == (-2.0, True, 1)
    assert not first.trainable


class Columns(pettingzoo.ParallelEnv[str, Any, Any]):
    """``left`` moves first, then both at once; no move may be ``0``."""

    metadata: ClassVar[dict[str, Any]] = {"name": "columns"}
    possible_agents: ClassVar[list[str]] = ["left", "right"]  # type: ignore[misc]

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def observation_space(self, agent: str) -> Any:
        return envweave_gym.Unicode(16)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.alone = list(self.possible_agents), True
        return self._shown(), self._infos()

    def _shown(self) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, "a column?")

    def _infos(self) -> dict[str, Any]:
        return {agent: {"active": agent == "left" or not self.alone} for agent in self.possible_agents}

    def step(self, actions: dict[str, int]) -> Any:
        if 0 in actions.values():
            raise InvalidAction("that column is full")
        if not self.alone:
            self.agents = []
        self.alone = False
        rewards, over = dict.fromkeys(self.possible_agents, 1.0), dict.fromkeys(self.possible_agents, False)
        return self._shown(), rewards, over, over, self._infos()


def columns(*replies: str, **limits: Any) -> Any:
    """Return the trajectories of a game with these replies."""
    queue = iter(replies)
    with Rollouts(lambda: ChatGame(Columns(), ChatRules(**limits)), num_envs=1, attempts=1) as pool:
        played = pool.play(group(1), policies(FakeClient(lambda *args: next(queue))))
    assert played.faults == 0
    return played.episodes[0].trajectories


def test_a_move_that_the_rules_forbid_is_an_invalid_reply_of_its_player():
    parts = columns("0", invalid_reward=-1.0)
    assert (parts["left"].reward, parts["left"].invalid, parts["left"].trainable) == (-1.0, 1, True)
    assert not parts["right"].trainable


def test_after_a_forbidden_move_its_player_is_asked_again():
    parts = columns("0", "1", "1", "1", invalid_replies=1)
    assert [(part.reward, part.invalid) for part in parts.values()] == [(2.0, 1), (2.0, 0)]
    assert "that column is full" in [message["content"] for message in parts["left"].messages]


def test_a_round_of_several_moves_that_is_refused_counts_for_nobody():
    parts = columns("1", "1", "0", invalid_reward=-1.0)
    assert [(part.reward, part.invalid, part.trainable) for part in parts.values()] == [(1.0, 0, False)] * 2
    assert [part.actions for part in parts.values()] == [1, 0]


def test_the_situations_of_kuhn_poker_are_what_a_player_reads_in_a_hand():
    tokenizer = Characters()
    assert sorted(seeds_of_deals()) == ["JK", "JQ", "KJ", "KQ", "QJ", "QK"]
    found = {one.name: one for one in situations(Prompts(tokenizer))}
    assert tuple(found) == INFORMATION_SETS
    text = tokenizer.decode(found["Qpb"].prompt, False)
    assert "You are player_0, and your card is the queen." in text
    assert text.endswith("Answer with one word: fold or call.<|im_end|>\n<|im_start|>assistant\n")
    assert "assistant\ncheck<|im_end|>" in text
    assert found["Jb"].agent == "player_1"
    assert found["Jb"].words == ("fold", "call")
    assert len({tuple(one.prompt) for one in found.values()}) == 12


def test_equal_prompts_of_a_group_share_requests_where_a_game_says_so():
    client = FakeClient(passive)
    tasks = [
        dataclasses.replace(task, later_requests=later)
        for later in [PromptRequests(4, "key")]
        for task in group(4)
    ]

    with Rollouts(lambda: ChatGame(envweave_gym.make("envweave/KuhnPoker-v0")), num_envs=3) as pool:
        played = pool.play(tasks, policies(client))
    assert all(one.fault is None for one in played.episodes)
    assert [request.count for request in client.requests] == [4, 4]


def move(reply: int, chance: float, reward: float, *, is_word: bool = True, deal: int = 0) -> Move:
    return Move("player_0", deal, TokenRow(), (1, 2), (reply,), math.log(chance), reward, is_word)


def test_two_words_get_half_the_difference_of_their_values_whatever_their_number():
    moves = [move(1, 0.75, 1.0), move(1, 0.75, 0.0), move(1, 0.75, 2.0), move(2, 0.25, -1.0)]
    advantages = advantages_of(moves, 0.0, -2.0)
    assert advantages == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1.0])
    bonus = advantages_of(moves, 0.5, -2.0)
    assert bonus[3] - advantages[3] == pytest.approx(0.25 * math.log(0.75 / 0.25))


def test_returns_are_compared_within_a_deal():
    lucky = [move(1, 0.5, 6.0), move(1, 0.5, 6.0), move(2, 0.5, 5.0)]
    unlucky = [move(1, 0.5, -6.0, deal=1), move(2, 0.5, -7.0, deal=1), move(2, 0.5, -7.0, deal=1)]
    alone = [move(1, 0.5, 100.0, deal=2)]
    advantages = advantages_of([*lucky, *unlucky, *alone], 0.0, -2.0)
    assert sorted(set(advantages)) == pytest.approx([-0.5 / 3, 0.5 / 4])


def test_a_word_that_is_rare_weighs_less_and_one_that_was_not_tried_gets_the_entropy_bonus_alone():
    rare = [*[move(1, 0.99, 0.0)] * 39, move(2, 0.01, 4.0)]
    assert advantages_of(rare, 0.0, -2.0)[-1] == pytest.approx(2.0 * 10 / 40)
    (alone, _) = advantages_of([move(1, 0.9, 3.0)] * 2, 0.5, -2.0)
    assert alone == pytest.approx(0.25 * (math.log(0.1) - math.log(0.9)) / 2)


def test_a_reply_that_is_no_word_is_made_rarer_and_leaves_the_values_of_words_alone():
    words = [move(1, 0.5, 1.0), move(2, 0.4, 0.0)]
    advantages = advantages_of([*words, move(3, 0.1, 9.0, is_word=False)], 0.0, -2.0)
    assert advantages[:2] == pytest.approx([0.5, -0.5])
    assert advantages[2] == pytest.approx(-2.0 / 3)


def test_the_bonus_fades_from_its_first_to_its_last_weight():
    options = Options(episodes=384 * 10, alpha=0.4, alpha_end=0.1)
    weights = [alpha_at(options, update) for update in range(11)]
    assert (weights[0], weights[5], weights[10]) == pytest.approx((0.4, 0.2, 0.1))


def test_only_the_words_that_a_prompt_offers_are_words():
    (episode,) = play(FakeClient(lambda prompt, seed, index: "bet"), size=1).episodes
    prompts = Prompts(Characters())
    (opening,) = moves_of(episode.trajectories["player_0"], 0, prompts)
    (answer,) = moves_of(episode.trajectories["player_1"], 0, prompts)
    assert (opening.is_word, answer.is_word) == (True, False)
    assert answer.reward != 0
