"""Kuhn poker: its rules, what is hidden, and its exact value."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from envweave_gym import messages_of, parse_action, state_of
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.envs.games.kuhn_poker import KuhnPoker, env, observation, parallel_env, raw_env
from envweave_gym.envs.games.kuhn_rules import (
    CARDS,
    DEALS,
    HISTORIES,
    INFORMATION_SETS,
    MOVES,
    TERMINALS,
    best_response_value,
    equilibrium,
    game_value,
    information_set,
    nash_conv,
    player_to_act,
)
from envweave_gym.episode.stream import EventKind

ID = "envweave/KuhnPoker-v0"
make_aec = partial(pettingzoo.make, "aec", ID)
make_parallel = partial(pettingzoo.make, "parallel", ID)

WINS = {
    "pp": {"JQ": -1, "JK": -1, "QJ": 1, "QK": -1, "KJ": 1, "KQ": 1},
    "pbp": {"JQ": -1, "JK": -1, "QJ": -1, "QK": -1, "KJ": -1, "KQ": -1},
    "pbb": {"JQ": -2, "JK": -2, "QJ": 2, "QK": -2, "KJ": 2, "KQ": 2},
    "bp": {"JQ": 1, "JK": 1, "QJ": 1, "QK": 1, "KJ": 1, "KQ": 1},
    "bb": {"JQ": -2, "JK": -2, "QJ": 2, "QK": -2, "KJ": 2, "KQ": 2},
}
"""What player 0 wins, by history and the cards of both."""


def cards_dealt(game: Any) -> str:
    """The cards, as the operator reads them."""
    reported = [
        event for event in game.record.events if event.kind == EventKind.REVEAL and len(event.to) == 1
    ]
    return "".join(event.data["card"] for event in reported)


def seed_of(cards: str) -> int:
    game = env()
    for seed in range(200):
        game.reset(seed=seed)
        if cards_dealt(game) == cards:
            return seed
    raise AssertionError(f"{cards} was never dealt")


SEEDS = {CARDS[a] + CARDS[b]: seed_of(CARDS[a] + CARDS[b]) for a, b in DEALS}


@pytest.mark.parametrize(("history", "cards"), [*product(WINS, SEEDS)])
def test_every_end_of_every_deal_pays_by_the_table(history: str, cards: str) -> None:
    turns, rounds = env(), parallel_env()
    turns.reset(seed=SEEDS[cards])
    rounds.reset(seed=SEEDS[cards])
    totals = Counter({"player_0": 0, "player_1": 0})
    for place, move in enumerate(history):
        assert turns.agent_selection == f"player_{place % 2}"
        assert not any(turns.terminations.values())
        turns.step(MOVES.index(move))
        _, rewards, terminations, _, _ = rounds.step(dict.fromkeys(rounds.agents, MOVES.index(move)))
        totals.update({agent: int(reward) for agent, reward in rewards.items()})
    assert all(terminations.values())
    assert turns.terminations == terminations
    won = WINS[history][cards]
    assert turns.rewards == rewards == {"player_0": won, "player_1": -won}
    assert totals == {"player_0": won, "player_1": -won}
    ours = [event for event in rounds.record.events if event.kind != EventKind.IGNORED]
    assert [event.data for event in ours] == [event.data for event in turns.record.events]
    leaving = [turns.last()[1]]
    turns.step(None)
    leaving.append(turns.last()[1])
    turns.step(None)
    assert sorted(leaving) == sorted([won, -won])
    assert turns.agents == rounds.agents == []


def test_the_table_covers_all_histories() -> None:
    assert set(WINS) == set(TERMINALS)
    assert {history + move for history in HISTORIES for move in MOVES} == {*TERMINALS, *HISTORIES} - {""}
    assert [player_to_act(history) for history in HISTORIES] == [0, 1, 1, 0]
    assert len(set(INFORMATION_SETS)) == 12


def test_all_deals_are_as_likely() -> None:
    game = env()
    game.reset(seed=1)
    dealt = Counter()
    for _ in range(3000):
        game.reset()
        dealt[cards_dealt(game)] += 1
    assert set(dealt) == set(SEEDS)
    assert max(abs(count - 500) for count in dealt.values()) < 100


def test_a_player_observes_its_card_and_the_moves() -> None:
    game = env()
    game.reset(seed=SEEDS["KJ"])
    assert game.observe("player_0").tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0]
    game.step(0)
    assert game.observe("player_1").tolist() == [1, 0, 0, 1, 0, 0, 0, 0, 0]
    game.step(1)
    assert game.observe("player_0").tolist() == [0, 0, 1, 1, 0, 0, 1, 0, 0]
    game.step(1)
    assert game.observe("player_1").tolist() == [1, 0, 0, 1, 0, 0, 1, 0, 1]
    seen = {tuple(observation(card, history)) for card, history in product(range(3), HISTORIES)}
    assert len(seen) == 12
    assert observation(0, "").dtype == np.float32


@pytest.mark.parametrize("history", TERMINALS)
@pytest.mark.parametrize("cards", SEEDS)
def test_a_card_stays_hidden_until_the_showdown(history: str, cards: str) -> None:
    showdown = history in ("pp", "pbb", "bb")
    turns, rounds = env(render_mode="ansi"), parallel_env(render_mode="ansi")
    turns.reset(seed=SEEDS[cards])
    shown = rounds.reset(seed=SEEDS[cards])
    for infos in (turns.infos, shown[-1]):
        reported = [infos[reader]["stream"].of_kind(EventKind.REVEAL) for reader in rounds.agents]
        assert [[event.data for event in events] for events in reported] == [
            [{"card": card}] for card in cards
        ]
    for place, move in enumerate([*history, None]):
        known = showdown and move is None
        for number, other in ((0, cards[1]), (1, cards[0])):
            reader, hidden = f"player_{number}", repr(other)
            everything = [
                turns.infos[reader],
                *(part[reader] for part in shown),
                messages_of(shown[-1], reader),
            ]
            assert (hidden in repr(everything)) is known, (place, reader)
        for game in (turns, rounds):
            assert (cards[0] in game.render()) is known
            assert any(card in repr(state_of(game)) for card in CARDS) is False
        if move is not None:
            turns.step(MOVES.index(move))
            shown = rounds.step({turns.possible_agents[place % 2]: MOVES.index(move)})


def test_an_observation_depends_only_on_the_players_own_card() -> None:
    """The seed apart, which only says how the hand was made."""

    def story(cards: str, reader: str) -> list[str]:
        game = env()
        game.reset(seed=SEEDS[cards])
        reported = []
        for move in "pb":
            game.step(MOVES.index(move))
            info = repr(game.infos[reader]).replace(f"'seed': {SEEDS[cards]}", "")
            reported.append(info + repr(game.observe(reader)))
        return reported

    assert story("KQ", "player_0") == story("KJ", "player_0") != story("QJ", "player_0")
    assert story("QJ", "player_1") == story("KJ", "player_1") != story("JQ", "player_1")


def test_a_fold_shows_no_card() -> None:
    game = env()
    game.reset(seed=SEEDS["KJ"])
    game.step(1)
    game.step(0)
    assert len([event for event in game.record.events if event.kind == EventKind.REVEAL]) == 2
    assert state_of(game) == {"episode": 0, "step_count": 2, "history": "bp"}


@pytest.mark.parametrize("alpha", [Fraction(0), Fraction(1, 7), Fraction(1, 4), Fraction(1, 3)])
def test_the_equilibria_are_worth_minus_an_eighteenth(alpha: Fraction) -> None:
    assert game_value(equilibrium(alpha)) == Fraction(-1, 18)
    assert nash_conv(equilibrium(alpha)) == 0
    assert game_value(equilibrium(float(alpha))) == pytest.approx(-1 / 18, abs=1e-12)
    assert nash_conv(equilibrium(float(alpha))) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("alpha", [Fraction(-1, 3) / 100, Fraction(34, 100)])
def test_no_other_bluff_is_an_equilibrium(alpha: Fraction) -> None:
    assert nash_conv(equilibrium(alpha)) > 0


def test_the_uniform_policy_has_its_known_value() -> None:
    uniform = dict.fromkeys(INFORMATION_SETS, Fraction(1, 2))
    assert game_value(uniform) == Fraction(1, 8)
    assert nash_conv(uniform) == Fraction(11, 12)


def test_a_best_response_is_the_best_of_all_pure_strategies() -> None:
    rng = np.random.default_rng(0)
    policy = {key: Fraction(int(rng.integers(0, 11)), 10) for key in INFORMATION_SETS}
    for player in (0, 1):
        own = [
            information_set(card, history)
            for history in HISTORIES
            if player_to_act(history) == player
            for card in range(3)
        ]
        pure = [
            {**policy, **dict(zip(own, choice, strict=True))} for choice in product((0, 1), repeat=len(own))
        ]
        sign = 1 - 2 * player
        assert best_response_value(policy, player) == max(sign * game_value(strategy) for strategy in pure)


def test_play_earns_the_exact_value() -> None:
    policy = {key: 0.2 + 0.05 * number for number, key in enumerate(INFORMATION_SETS)}
    rng = np.random.default_rng(3)
    game, total, hands = raw_env(), 0.0, 6000
    game.reset(seed=0)
    for _ in range(hands):
        history = ""
        while not any(game.terminations.values()):
            card = int(np.argmax(game.observe(game.agent_selection)[:3]))
            action = int(rng.random() < policy[information_set(card, history)])
            history += MOVES[action]
            game.step(action)
        total += game.rewards["player_0"]
        game.reset()
    assert total / hands == pytest.approx(game_value(policy), abs=0.06)


def test_without_a_stream_it_passes_pettingzoos_tests_too(capsys: pytest.CaptureFixture[str]) -> None:
    api_test(raw_env(), num_cycles=200)
    seed_test(raw_env, num_cycles=50)
    assert "Passed API test" in capsys.readouterr().out


def test_max_cycles_breaks_the_hand_off_for_nothing() -> None:
    game = make_aec(max_cycles=1)
    game.reset(seed=0)
    game.step(0)
    assert not any(game.truncations.values())
    game.step(1)
    assert game.truncations == {"player_0": True, "player_1": True}
    assert not any(game.terminations.values())
    assert game.rewards == {"player_0": 0.0, "player_1": 0.0}
    rounds = make_parallel(max_cycles=1)
    rounds.reset(seed=0)
    rounds.step({"player_0": 0})
    _, rewards, terminations, truncations, _ = rounds.step({"player_1": 1})
    assert rewards == {"player_0": 0.0, "player_1": 0.0}
    assert terminations == {"player_0": False, "player_1": False}
    assert truncations == {"player_0": True, "player_1": True}
    assert rounds.agents == []


def test_a_hand_within_max_cycles_ends_by_itself() -> None:
    game = make_parallel(max_cycles=1)
    game.reset(seed=SEEDS["KQ"])
    game.step({"player_0": 1})
    _, rewards, terminations, truncations, _ = game.step({"player_1": 1})
    assert rewards == {"player_0": 2.0, "player_1": -2.0}
    assert terminations == {"player_0": True, "player_1": True}
    assert truncations == {"player_0": False, "player_1": False}


@pytest.mark.parametrize("max_cycles", [0, -3, 1.5, True, "2"])
def test_a_bad_max_cycles_is_refused(max_cycles: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"{ID}: max_cycles={max_cycles!r} is not a number of cycles"):
        make_parallel(max_cycles=max_cycles)


@pytest.mark.parametrize("make", [make_aec, make_parallel])
def test_an_unknown_argument_is_refused_by_name(make: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"^{ID} .*'max_cicles'.*'max_cycles'"):
        make(max_cicles=3)
    with pytest.raises(InvalidArgument, match=f"^{ID}: render_mode='film' is unknown; there are human, ansi"):
        make(render_mode="film")


def test_resets_of_the_plain_game_follow_from_the_last_seed() -> None:
    def hands(game: KuhnPoker) -> list[Any]:
        game.reset(seed=11)
        reported = []
        for _ in range(20):
            game.reset()
            reported.append([game.observe(player).tolist() for player in game.possible_agents])
        return reported

    assert hands(raw_env()) == hands(raw_env())
    assert len({str(hand) for hand in hands(raw_env())}) > 3


def test_a_reply_becomes_an_action() -> None:
    assert parse_action(make_parallel(), " 1 ", "player_1") == 1
    with pytest.raises(ValueError, match="call"):
        parse_action(make_aec(), "call", "player_0")


def test_human_rendering_prints_every_move(capsys: pytest.CaptureFixture[str]) -> None:
    game = env(render_mode="human")
    game.reset(seed=SEEDS["QJ"])
    game.step(0)
    game.step(0)
    assert capsys.readouterr().out.splitlines() == [
        "player_0:? player_1:? -",
        "player_0:? player_1:? p",
        "player_0:Q player_1:J pp",
    ]
    assert game.render() is None


@pytest.mark.parametrize("form", ["aec", "parallel"])
def test_each_prompt_has_the_rules_the_players_card_and_the_names_of_moves(form: str) -> None:
    game: Any = pettingzoo.make(form, ID)
    infos: Any = game.reset(seed=SEEDS["KJ"])
    infos = game.infos if infos is None else infos[1]
    reported = {player: texts(infos[player]) for player in game.possible_agents}
    assert "king" in reported["player_0"][0].rpartition("card is")[2]
    assert "jack" in reported["player_1"][0].rpartition("card is")[2]
    assert reported["player_0"][1:] == ["It is your move. Answer with one word: check or bet."]
    assert reported["player_1"][1:] == []


def test_a_prompt_has_the_moves_so_far_and_the_answers_to_a_bet() -> None:
    game = make_aec()
    game.reset(seed=0)
    game.step(parse_action(game, "Check.", "player_0"))
    assert texts(game.infos["player_1"])[-1].startswith("The moves so far: check. It is your move.")
    game.step(parse_action(game, "bet", "player_1"))
    assert texts(game.infos["player_0"])[-1].endswith(
        "check, bet. It is your move. Answer with one word: fold or call."
    )
    game.step(parse_action(game, "call", "player_0"))
    assert not [text for player in game.agents for text in texts(game.infos[player]) if "your move" in text]


def texts(info: Any) -> list[str]:
    return [reported["content"] for reported in messages_of(info)]
