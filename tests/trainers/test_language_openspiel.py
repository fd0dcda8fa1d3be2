"""OpenSpiel's games through Shimmy: legal moves, texts, chance by seed, simultaneous rounds, copies in mid-game."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import pytest

pytest.importorskip("pyspiel", reason="OpenSpiel is not installed: run make trainers")

import numpy as np
import pettingzoo
from pettingzoo.test import api_test

import envweave_gym as ew
from envweave_gym.core.faults import InvalidAction, InvalidArgument
from envweave_gym.envs.language.open_spiel import OpenSpiel
from envweave_gym.testing import check_all

ID = "envweave/OpenSpiel-v0"
pytestmark = pytest.mark.trainers


def played(game: Any, seed: int) -> list[Any]:
    """A random game: agents, observations and rewards."""
    draw, seen = random.Random(seed), list[Any]()
    game.reset(seed=seed)
    for agent in game.agent_iter(200):
        observation, reward, terminated, truncated, info = game.last()
        seen.append((agent, np.asarray(observation).tolist(), reward))
        legal = np.flatnonzero(info["action_mask"]).tolist()
        game.step(None if terminated or truncated else draw.choice(legal))
    return seen


@pytest.mark.parametrize(
    "game", ["tic_tac_toe", "kuhn_poker", "leduc_poker", "connect_four", "goofspiel", "liars_dice"]
)
def test_equal_seeds_give_equal_games(game: str):
    env = pettingzoo.make("aec", ID, game=game)
    assert played(env, 3) == played(env, 3) == played(pettingzoo.make("aec", ID, game=game), 3)
    assert sum(reward for _, _, reward in played(env, 4)[-len(env.possible_agents) :]) == 0


def test_a_model_names_its_move():
    game = ew.make(ID, api="aec")
    game.reset(seed=0)
    [prompt] = ew.messages_of(game.infos, "player_0")
    assert "Your legal moves: x(0,0), x(0,1)" in prompt["content"]
    game.step(ew.parse_action(game, "The centre is best.\n**x(1,1)**", "player_0"))
    assert game.agent_selection == "player_1"
    assert ".x." in ew.messages_of(game.infos, "player_1")[0]["content"]
    assert ew.parse_action(game, "0", "player_1") == 0
    for reply in ("o(1,1)", "4", "", "anything"):
        with pytest.raises(InvalidAction, match="o\\(0,0\\)"):
            ew.parse_action(game, reply, "player_1")


def test_an_illegal_move_is_refused_and_has_no_effect():
    game = ew.make(ID, api="aec")
    game.reset(seed=0)
    game.step(4)
    with pytest.raises(InvalidAction, match="4 is no legal move of player_1; there are 0 o"):
        game.step(4)
    assert game.agent_selection == "player_1"
    game.step(0)


def test_players_of_a_simultaneous_round_do_not_see_each_other():
    game = ew.make(ID, api="aec", game="matrix_pd")
    game.reset(seed=0)
    assert [request.agent for request in ew.stream_of(game.infos["player_0"]).requests] == [
        "player_0",
        "player_1",
    ]
    assert len(ew.messages_of(game.infos, "player_1")) == 1
    game.step(0)
    assert not [event for event in ew.stream_of(game.infos["player_1"]).events if event.kind == "act"]
    game.step(1)
    assert game.rewards == {"player_0": 0.0, "player_1": 10.0}


def test_secrets_stay_with_their_player():
    game = ew.make(ID, api="aec", game="kuhn_poker")
    texts = set()
    for seed in range(12):
        game.reset(seed=seed)
        [prompt] = ew.messages_of(game.infos, "player_0")
        assert ew.messages_of(game.infos, "player_1") == []
        texts.add(prompt["content"])
    assert len(texts) == 3


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda game: pickle.loads(pickle.dumps(game))])
def test_a_copy_goes_on_in_mid_game(duplicate: Any):
    game = OpenSpiel(game="kuhn_poker", config={"players": 3})
    game.reset(seed=2)
    game.step(0)
    other = duplicate(game)
    for one in (game, other):
        one.step(1)
        one.step(0)
    assert other.agent_selection == game.agent_selection
    assert (other.rewards, other.picture()) == (game.rewards, game.picture())
    assert other.possible_agents == ["player_0", "player_1", "player_2"]


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"game": "conect_four"}, "did you mean 'connect_four'"),
        ({"game": 4}, "game=4 is no name"),
        ({"config": 4}, "config=4 is neither a dict nor None"),
        ({"game": "kuhn_poker", "config": {"players": 99}}, "cannot be played"),
        ({"game": "kuhn_poker", "config": {"colour": 1}}, "cannot be played"),
    ],
)
def test_a_wrong_argument_is_one_sentence(kwargs: dict[str, Any], words: str):
    with pytest.raises(InvalidArgument, match=words) as caught:
        ew.make(ID, **kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*infinity")
def test_pettingzoo_accepts_the_game_and_a_server_plays_it():
    api_test(pettingzoo.make("aec", ID), num_cycles=30)
    there = ew.make(ID, api="aec", game="leduc_poker", backend="subprocess")
    try:
        assert played(there, 6) == played(pettingzoo.make("aec", ID, game="leduc_poker"), 6)
    finally:
        there.close()


def test_the_example_of_the_docs_makes_a_move(example: Any):
    assert example("open_spiel_game")["game"].agent_selection == "player_1"


def test_the_conformance_kit_finds_nothing():
    assert check_all(ID, game="kuhn_poker")["same_seed_same_trace"] == "passed"
