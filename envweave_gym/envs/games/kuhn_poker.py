"""Kuhn poker as a game of PettingZoo: three cards, one bet, two players in turn.

:mod:`~envweave_gym.envs.games.kuhn_rules` computes exact values of policies.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from envweave_gym.core.arguments import call
from envweave_gym.core.reply_parsing import read_name
from envweave_gym.core.seeding import Seeds, mix
from envweave_gym.envs.games.base import RESET_OPTIONS, TurnBasedGame, check_arguments
from envweave_gym.envs.games.kuhn_rules import (
    CARDS,
    DEALS,
    MOVES,
    TERMINALS,
    is_showdown,
    payoff,
    player_to_act,
)
from envweave_gym.episode.message import message
from envweave_gym.episode.stream import Event, reveal
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel

_NAME = "envweave/KuhnPoker-v0"
_MAX_MOVES = 3
PLAYERS = ("player_0", "player_1")
_NAMES = ("jack", "queen", "king")
_OPEN, _ANSWER = ("check", "bet"), ("fold", "call")
"""Words for action 0 and action 1, before a bet and after a bet."""
_RULES = (
    "You play poker with three cards: jack, queen and king, of which the king is the best. Both players put "
    "1 into the pot and get one card. A player checks or bets 1; after a bet the other folds or calls with "
    "1. After a fold the other player wins, else the better card; the winner gets what the loser has put in."
)
FIRST_MOVES = {"pass": 0, "check": 0, "bet": 1, "0": 0, "1": 1}
"""Actions by their words in a reply before a bet."""
ANSWERS = {"pass": 0, "fold": 0, "bet": 1, "call": 1, "0": 0, "1": 1}
"""Actions by their words in a reply after a bet."""


class KuhnPoker(TurnBasedGame):
    """Game of Kuhn poker: each player antes 1 and gets a card. Action 0 checks or folds; action 1 bets 1 or calls.

    The observation is one-hot: the player's own card (3), then each of up to three moves (2 each). The winner
    gets the loser's part of the pot: 1 or 2. A ``reveal`` event shows a card to its player only, and at a
    showdown both cards to both. Messages give a player the rules and, when it must move, the words for its
    moves.
    """

    metadata: dict[str, Any] = {
        "name": "kuhn_poker_v0",
        "render_modes": ["human", "ansi"],
        "render_fps": 1,
        "is_parallelizable": False,
        "reset_options": RESET_OPTIONS,
        "action_names": ("pass", "bet"),
    }

    def __init__(self, max_cycles: int | None = None, render_mode: str | None = None) -> None:
        """Truncate hands without a winner after ``max_cycles`` moves of each player; ``None`` means no limit."""
        super().__init__()
        check_arguments(_NAME, self, max_cycles, render_mode)
        self.max_cycles, self.render_mode = max_cycles, render_mode
        self.possible_agents = list(PLAYERS)
        self.observation_spaces = {
            player: Box(0.0, 1.0, (len(CARDS) + 2 * _MAX_MOVES,), np.float32) for player in PLAYERS
        }
        self.action_spaces = {player: Discrete(2) for player in PLAYERS}
        self.agents: list[str] = []
        self._seeds = Seeds(_NAME)
        self._deal, self._history = DEALS[0], ""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Deal a card to each player, and prompt the first."""
        self._deal = DEALS[mix(self._seeds.next(seed)) % len(DEALS)]
        self._history = ""
        self._start()
        self.agent_selection = PLAYERS[0]
        for player, card in zip(PLAYERS, self._deal, strict=True):
            self.emit(reveal((player,), card=CARDS[card]), _card_message(player, card))
        self.emit(_move_message(self.agent_selection, self._history))
        self.show()

    def _act(self, agent: str, action: Any) -> None:
        """Make the player's move, and pay both if it ends the hand."""
        self._history += MOVES[int(action)]
        if self._history in TERMINALS:
            self._pay()
        elif self.max_cycles is not None and len(self._history) >= len(PLAYERS) * self.max_cycles:
            self.truncations = dict.fromkeys(PLAYERS, True)
        self.agent_selection = player = PLAYERS[player_to_act(self._history)]
        if not (self.terminations[player] or self.truncations[player]):
            self.emit(_move_message(player, self._history))

    def _pay(self) -> None:
        won = float(payoff(self._deal, self._history))
        self.rewards = dict(zip(PLAYERS, (won, -won), strict=True))
        self.terminations = dict.fromkeys(PLAYERS, True)
        if is_showdown(self._history):
            # A fold shows no card, or the loser would learn what the winner held.
            self.emit(reveal(PLAYERS, **self._cards()))

    def _cards(self) -> dict[str, str]:
        return {player: CARDS[card] for player, card in zip(PLAYERS, self._deal, strict=True)}

    def observe(self, agent: str) -> NDArray[np.float32]:
        """Return the agent's card and the moves so far, one-hot."""
        return observation(self._deal[PLAYERS.index(agent)], self._history)

    def parse_action(self, text: str, agent: str | None = None) -> int:
        """Return the action that a reply names, by a possible move or by index: ``check``, ``1``."""
        return read_name(text, ANSWERS if self._history.endswith(MOVES[1]) else FIRST_MOVES, "move")

    def picture(self) -> str:
        """Return the moves so far as text, with the cards after a showdown."""
        cards = self._cards() if is_showdown(self._history) else dict.fromkeys(PLAYERS, "?")
        return " ".join([*(f"{player}:{card}" for player, card in cards.items()), self._history or "-"])

    def episode_state(self) -> dict[str, Any]:
        """Return the moves so far, which both players know."""
        return {"history": self._history}


@cache
def _card_message(player: str, card: int) -> Event:
    """Return the message with the rules and the player's card."""
    return message("user", f"{_RULES} You are {player}, and your card is the {_NAMES[card]}.", to=(player,))


@cache
def _move_message(player: str, history: str) -> Event:
    """Return the message that prompts a player to move."""
    is_bet = MOVES[1] in history
    names = [_OPEN[MOVES.index(move)] for move in history]  # the move after a bet ends the hand
    so_far = f"The moves so far: {', '.join(names)}. " if names else ""
    words = " or ".join(_ANSWER if is_bet else _OPEN)
    return message("user", f"{so_far}It is your move. Answer with one word: {words}.", to=(player,))


def observation(card: int, history: str) -> NDArray[np.float32]:
    """Return the observation of a player with ``card`` after ``history``."""
    seen = np.zeros(len(CARDS) + 2 * _MAX_MOVES, np.float32)
    seen[card] = 1.0
    for i, move in enumerate(history):
        seen[len(CARDS) + 2 * i + MOVES.index(move)] = 1.0
    return seen


raw_env = KuhnPoker


def env(**kwargs: Any) -> AECStream:
    """Make the game as an ``AECEnv`` with streams in its infos; ``kwargs`` are the arguments of the game."""
    return AECStream(call(_NAME, raw_env, kwargs), name=_NAME)


def parallel_env(**kwargs: Any) -> TurnBasedParallel:
    """Make the game as a ``ParallelEnv`` with streams in its infos; ``kwargs`` are the arguments of the game."""
    return TurnBasedParallel(env(**kwargs))
