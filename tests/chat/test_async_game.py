"""One episode whose roles are played by coroutines: they wait for one another, and a loss is the loss of all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import envweave_gym
from envweave_gym.chat import AsyncChatGame, ChatGame, ChatTurn, EpisodeLost
from envweave_gym.core.protocols import AGENT

FIRST, SECOND = PLAYERS = ("player_0", "player_1")


def kuhn(make: Callable[[], Any] | None = None, **settings: Any) -> AsyncChatGame:
    def chat() -> ChatGame:
        return ChatGame(make() if make else envweave_gym.make("envweave/KuhnPoker-v0"))

    return AsyncChatGame(chat, PLAYERS, name="kuhn", seed=0, **settings)


async def boldly(game: AsyncChatGame, role: str) -> ChatTurn:
    """Play a role that bets and calls, to its end."""
    turn = await game.begin(role)
    while turn.ending is None:
        after_bet = "fold" in game.messages(role)[-1]["content"]
        turn = await game.reply(role, "call" if after_bet else "bet")
    return turn


def together(game: AsyncChatGame, play: Any = boldly) -> Any:
    async def run() -> Any:
        for role in PLAYERS:
            game.join(role)
        return await asyncio.gather(*[play(game, role) for role in PLAYERS], return_exceptions=True)

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_roles_play_together_and_the_last_to_leave_closes_the_game():
    game = kuhn()
    lost, won = together(game)
    assert (lost.reward, won.reward) == (-2.0, 2.0)
    assert game.leave(FIRST, over=True) is None
    closing = game.leave(SECOND, over=True)
    assert closing is not None
    closing.result(30)


def test_an_environment_has_one_role_and_a_thread_of_its_own():
    threads = list[int]()

    def make() -> ChatGame:
        threads.append(threading.get_ident())
        return ChatGame(envweave_gym.make("envweave/PickLetter-v0"))

    async def run() -> ChatTurn:
        game = AsyncChatGame(make, [AGENT], name="letters", seed=0)
        game.join(AGENT)
        await game.begin(AGENT)
        letter = game.messages(AGENT)[0]["content"].partition("pick ")[2][0]
        turn = await game.reply(AGENT, letter)
        closing = game.leave(AGENT, over=True)
        assert closing is not None
        await asyncio.wrap_future(closing)
        return turn

    assert asyncio.run(asyncio.wait_for(run(), 60)).reward == 1.0
    assert threads != [threading.get_ident()]


def test_a_game_that_cannot_be_made_is_lost_for_all():
    def broken() -> Any:
        raise OSError("no table")

    errors = together(kuhn(broken))
    assert sorted(type(error).__name__ for error in errors) == ["EpisodeLost", "OSError"]
    [lost] = [error for error in errors if isinstance(error, EpisodeLost)]
    assert str(lost) == "kuhn: OSError: no table"
    assert "no table" in lost.fault.message


def test_a_role_that_nobody_plays_is_waited_for_as_long_as_the_patience_says():
    async def run() -> None:
        game = kuhn(patience=0.05)
        game.join(FIRST)
        await game.begin(FIRST)

    with pytest.raises(
        EpisodeLost, match=r"player_0 has waited 0\.05 s for player_1; all roles must be played"
    ):
        asyncio.run(run())


def test_a_role_that_leaves_early_loses_the_game_for_those_who_wait():
    async def play(game: AsyncChatGame, role: str) -> None:
        await game.begin(role)
        if role == FIRST:
            game.leave(role, over=False)
        else:
            await game.reply(role, "call")

    _, error = together(kuhn(), play)
    assert isinstance(error, EpisodeLost)
    assert "player_0 ended before the game" in str(error)
