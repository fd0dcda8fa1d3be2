"""TextArena's games are PettingZoo games: seeds, players, rewards and messages, with the real package."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("textarena", reason="TextArena is not installed: run make trainers")

import pettingzoo

import envweave_gym as ew
from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.testing import check_all

ID = "envweave/TextArena-v0"
# Games whose modules are compiled in a test show their invalid escapes.
pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore:invalid escape")]


def played(seed: int, replies: list[str], **kwargs: Any) -> list[tuple[str, str]]:
    """Agents and the texts they saw, in a game with these replies in turn."""
    game, seen = ew.make(ID, api="aec", **kwargs), list[tuple[str, str]]()
    game.reset(seed=seed)
    for reply in replies:
        observation, _, terminated, truncated, _ = game.last()
        seen.append((game.agent_selection, observation["prompt"]))
        game.step(None if terminated or truncated else reply)
        if not game.agents:
            break
    return seen


def test_a_game_ends_with_the_rewards_of_textarena():
    game = pettingzoo.make("aec", ID, game="TicTacToe-v0")
    game.reset(seed=1)
    for move in ("[0]", "[4]", "[1]", "[5]", "[2]"):
        assert not any(game.terminations.values())
        game.step(move)
    assert game.rewards == {"player_0": 1.0, "player_1": -1.0}
    assert set(game.terminations.values()) == {True}
    assert game.infos["player_0"]["reason"] == "Player 0 has won!"


def test_messages_are_what_is_new_and_only_their_agent_sees_them():
    game = ew.make(ID, api="aec")
    game.reset(seed=1)
    [first] = ew.messages_of(game.infos, "player_0")
    assert ew.messages_of(game.infos, "player_1") == []
    game.step("[0]")
    [second] = ew.messages_of(game.infos, "player_1")
    game.step("[4]")
    [third] = ew.messages_of(game.infos, "player_0")
    assert "You are Player 0" in first["content"]
    assert "You are Player 1" in second["content"]
    assert "You are Player 0" not in third["content"]
    assert game.observe("player_0") == {"prompt": first["content"] + third["content"]}


@pytest.mark.parametrize("game", ["Poker-v0", "LiarsDice-v0", "KuhnPoker-v0", "Sokoban-v0"])
def test_equal_seeds_give_equal_games_whatever_else_draws_numbers(game: str):
    replies = ["[call]", "[3]", "[1]", "[check]"] * 3
    before = played(7, replies, game=game)
    random.seed(99)
    np.random.seed(99)
    state = random.getstate(), np.random.get_state()[1].tobytes()
    assert played(7, replies, game=game) == before
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == state
    assert any(played(seed, replies, game=game) != before for seed in range(8, 14))


def test_two_games_at_once_do_not_disturb_each_other():
    alone = played(3, ["[call]"] * 8, game="Poker-v0")
    one, two = (ew.make(ID, api="aec", game="Poker-v0") for _ in range(2))
    one.reset(seed=3)
    two.reset(seed=4)
    seen: list[tuple[str, str]] = []
    for _ in range(8):
        seen.append((one.agent_selection, one.last()[0]["prompt"]))
        two.step("[call]" if two.agents and not any(two.terminations.values()) else None)
        one.step("[call]")
    assert seen == alone


@pytest.mark.parametrize(("game", "players", "takes"), [("TicTacToe-v0", 3, "2"), ("Poker-v0", 1, "2, 3, 4")])
def test_players_are_checked_when_the_game_is_made(game: str, players: int, takes: str):
    with pytest.raises(InvalidArgument, match=f"players={players} is refused by {game}; it takes {takes}"):
        ew.make(ID, game=game, players=players)


def test_the_number_of_players_is_the_smallest_or_the_given_one():
    assert ew.make(ID, api="aec", game="GuessTheNumber-v0").possible_agents == ["player_0"]
    assert len(ew.make(ID, api="aec", game="Poker-v0").possible_agents) == 2
    assert len(ew.make(ID, api="aec", game="Poker-v0", players=5).possible_agents) == 5


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"game": "Pokr-v0"}, "did you mean 'Poker-v0'"),
        ({"game": 3}, "game=3 is no name"),
        ({"players": 0}, "players=0"),
        ({"players": True}, "players=True"),
        ({"options": {"sides": 3}}, "unexpected keyword argument 'sides'"),
        ({"options": 3}, "options=3 is neither a dict nor None"),
        ({"gmae": "Poker-v0"}, "gmae"),
    ],
)
def test_a_wrong_argument_is_one_sentence(kwargs: dict[str, Any], words: str):
    with pytest.raises(InvalidArgument, match=words) as caught:
        ew.make(ID, **kwargs)
    assert "\n" not in str(caught.value)


def test_a_game_without_its_data_says_so(monkeypatch: pytest.MonkeyPatch):
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk, "download", lambda *_, **__: False)
    monkeypatch.setattr(nltk.data, "path", [])
    with pytest.raises(
        NotAvailable, match="Hangman-v0' cannot be made: LookupError: Resource words not found"
    ):
        ew.make(ID, game="Hangman-v0")


def test_a_missing_reward_is_an_error_and_no_zero(monkeypatch: pytest.MonkeyPatch):
    import textarena

    monkeypatch.setattr(textarena.State, "close", lambda self: ({0: 1}, self.game_info))
    game = ew.make(ID, api="aec")
    game.reset(seed=1)
    for move in ("[0]", "[4]", "[1]", "[5]"):
        game.step(move)
    with pytest.raises(RuntimeError, match="None as the reward of player_1"):
        game.step("[2]")


def test_the_parallel_form_plays_in_turn():
    game = ew.make(ID, api="parallel")
    game.reset(seed=0)
    *_, terminated, _, _ = game.step({"player_0": "[0]", "player_1": "ignored"})
    assert not any(terminated.values())
    assert ew.state_of(game)["game"] == "TicTacToe-v0"


def test_a_server_plays_the_same_game():
    here = played(5, ["[call]"] * 6, game="Poker-v0")
    assert played(5, ["[call]"] * 6, game="Poker-v0", backend="subprocess") == here


def test_the_example_of_the_docs_plays_a_game(example: Any):
    game = example("textarena_game")["game"]
    assert game.agents == []


def test_coming_from_textarena(example: Any):
    before, after = example("textarena_before"), example("textarena_after")
    assert after["rewards"] == {f"player_{player}": reward for player, reward in before["rewards"].items()}
    assert after["observation"] == {"prompt": before["observation"]}
    assert after["infos"]["player_1"]["reason"] == before["infos"][1]["reason"]


def test_the_conformance_kit_finds_nothing():
    assert check_all(ID, game="LiarsDice-v0")["pickling_continues_the_episode"] == "passed"
