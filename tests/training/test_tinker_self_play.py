"""Self-play with a fake sampler: every agent reads its own messages, and what ends a game is its own doing."""

from __future__ import annotations

from typing import Any

import pytest
from absent import needs_module
from fake_tinker import Characters, FakeClient, group, policies

import envweave_gym
from envweave_gym.envs.games.kuhn_rules import INFORMATION_SETS
from envweave_gym.training.kuhn_tinker import situations
from envweave_gym.training.tinker.prompts import Prompts
from envweave_gym.training.tinker.rollouts import Played, Rollouts
from envweave_gym.training.tinker.self_play import as_parallel, is_game, play_game

needs_module("tinker", "tinker")
needs_module("jinja2")

BETS = "check or bet."


def passive(prompt: str, seed: int, index: int) -> str:
    return "check" if prompt.rstrip().endswith(f"{BETS}<|im_end|>\n<|im_start|>assistant") else "fold"


def bold(prompt: str, seed: int, index: int) -> str:
    return "bet" if BETS in prompt[-60:] else "call"


def play(client: FakeClient, size: int = 2, api: str = "parallel", **limits: Any) -> Played:
    def make() -> Any:
        return as_parallel(envweave_gym.make("envweave/KuhnPoker-v0", api=api))

    with Rollouts(make, play_game, num_envs=2) as pool:
        return pool.play(group(size), policies(client, **limits))


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
            assert part.counts
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
    assert (second.reward, second.counts, second.invalid) == (-2.0, True, 1)
    assert not first.counts


def test_games_are_distinguished_from_single_environments():
    assert is_game(envweave_gym.make("envweave/KuhnPoker-v0"))
    assert not is_game(envweave_gym.make("envweave/Counter-v0"))


def test_the_situations_of_kuhn_poker_are_what_a_player_reads_in_a_hand():
    tokenizer = Characters()
    found = {one.name: one for one in situations(Prompts(tokenizer))}
    assert tuple(found) == INFORMATION_SETS
    text = tokenizer.decode(found["Qpb"].prompt, False)
    assert "You are player_0, and your card is the queen." in text
    assert text.endswith("Answer with one word: fold or call.<|im_end|>\n<|im_start|>assistant\n")
    assert "assistant\ncheck<|im_end|>" in text
    assert found["Jb"].agent == "player_1"
    assert found["Jb"].words == ("fold", "call")
    assert len({tuple(one.prompt) for one in found.values()}) == 12
