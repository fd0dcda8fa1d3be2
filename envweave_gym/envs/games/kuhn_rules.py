"""Implements the rules of Kuhn poker, and computes exact values of policies by traversing the whole game tree.

Three cards, an ante of 1, one bet of 1. A history is a text of ``p`` (pass: check, or fold to a bet) and
``b`` (bet, or call a bet); player 0 acts first and after ``pb``. A policy maps every information set (own
card and history, such as ``"K"``, ``"Qb"`` or ``"Jpb"``) to the probability of ``b``. Probabilities may be
floats or fractions; with ``fractions.Fraction`` every value is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Any

CARDS = ("J", "Q", "K")
"""Letters of the cards, lowest first; elsewhere a card is an index into this tuple."""

MOVES = "pb"
"""Letters of action 0 and action 1 in a history."""

DEALS = tuple(permutations(range(len(CARDS)), 2))
"""The six equally likely deals: the card of player 0, the card of player 1."""

HISTORIES = ("", "p", "b", "pb")
"""The histories after which a player must act."""

TERMINALS = ("pp", "pbp", "pbb", "bp", "bb")
"""The histories after which the hand is over."""

Policy = Mapping[str, Any]


def player_to_act(history: str) -> int:
    """Return the index of the player whose turn it is."""
    return len(history) % 2


def information_set(card: int, history: str) -> str:
    """Return the information set of the player to act: its card and the history."""
    return CARDS[card] + history


INFORMATION_SETS = tuple(
    information_set(card, history) for history in HISTORIES for card in range(len(CARDS))
)
"""All twelve information sets."""


def is_showdown(history: str) -> bool:
    """Return whether the hand ended without a fold."""
    return history in ("pp", "bb", "pbb")


def payoff(deal: tuple[int, int], history: str) -> int:
    """Return the payoff of player 0 at the end of a hand; that of player 1 is its negative."""
    if is_showdown(history):
        stake = 2 if history.endswith("bb") else 1
        return stake if deal[0] > deal[1] else -stake
    return 1 if history == "bp" else -1


def game_value(policy: Policy) -> Any:
    """Return the expected payoff of player 0 if both play ``policy``; it is -1/18 at an equilibrium."""
    return sum(_value(policy, deal, "") for deal in DEALS) / len(DEALS)


def _value(policy: Policy, deal: tuple[int, int], history: str) -> Any:
    if history in TERMINALS:
        return payoff(deal, history)
    bet = policy[information_set(deal[player_to_act(history)], history)]
    return (1 - bet) * _value(policy, deal, history + "p") + bet * _value(policy, deal, history + "b")


def nash_conv(policy: Policy) -> Any:
    """Return the sum of both players' gains from best responses to ``policy``; 0 only at an equilibrium."""
    return best_response_value(policy, 0) + best_response_value(policy, 1)


def best_response_value(policy: Policy, player: int) -> Any:
    """Return the expected payoff of ``player`` with a best response to an opponent that plays ``policy``."""
    total: Any = 0
    for card in range(len(CARDS)):
        others = {other: 1 for other in range(len(CARDS)) if other != card}
        total += _respond(policy, player, card, others, "")
    return total / len(DEALS)


def _respond(policy: Policy, player: int, card: int, reach: dict[int, Any], history: str) -> Any:
    """Return the best total payoff from ``history`` on, over the opponent's cards.

    ``reach`` has the probability of each of these cards that the opponent plays up to this history.
    """
    if history in TERMINALS:
        sign = 1 - 2 * player
        deals = {other: (card, other) if player == 0 else (other, card) for other in reach}
        return sum(weight * sign * payoff(deals[other], history) for other, weight in reach.items())
    if player_to_act(history) == player:
        return max(_respond(policy, player, card, reach, history + move) for move in MOVES)
    # The opponent's card is unknown, so both of its moves count, weighted by their probability.
    bets = {other: policy[information_set(other, history)] for other in reach}
    passing = {other: weight * (1 - bets[other]) for other, weight in reach.items()}
    betting = {other: weight * bets[other] for other, weight in reach.items()}
    return _respond(policy, player, card, passing, history + "p") + _respond(
        policy, player, card, betting, history + "b"
    )


def equilibrium(alpha: Any = 0) -> dict[str, Any]:
    """Return the equilibrium in which player 0 bluffs a jack with probability ``alpha``, from 0 to 1/3."""
    third = type(alpha)(1) / 3
    first = {"J": alpha, "Q": 0, "K": 3 * alpha, "Jpb": 0, "Qpb": alpha + third, "Kpb": 1}
    second = {"Jp": third, "Qp": 0, "Kp": 1, "Jb": 0, "Qb": third, "Kb": 1}
    return first | second
