"""A chat game in a thread of its own, whose roles are played by coroutines of one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from envweave_gym.chat.game import ChatGame
from envweave_gym.chat.history import ChatMessage
from envweave_gym.chat.own_thread import OwnThread
from envweave_gym.chat.results import EpisodeLost, fault_from
from envweave_gym.chat.rules import ChatTurn


class AsyncChatGame:
    """One episode of a :class:`ChatGame` with a coroutine for each role; if it is lost, all of them raise.

    A role joins, replies until its turn has an ending, and leaves. The environment is made, stepped and closed in its
    own thread, so that a slow one holds up no other.
    """

    def __init__(
        self,
        make: Callable[[], ChatGame],
        roles: Sequence[str],
        *,
        name: str,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        patience: float = 600.0,
    ) -> None:
        """Take what the first :meth:`begin` needs; nothing is made yet.

        ``roles`` are those of the game, ``name`` is for errors, and ``patience`` is the limit in seconds of a role's
        wait for the others, at the start and at every turn.
        """
        self._make, self._seed, self._options = make, seed, options
        self._roles, self._name, self._patience = tuple(roles), name, patience
        self._game: ChatGame | None = None
        self._thread = OwnThread(name)
        self._changed = asyncio.Event()
        self._lost: EpisodeLost | None = None
        self._has_begun = False
        self._turns: dict[str, bool] | None = None
        """Whether each role has a turn or is at its end; ``None`` before the game begins."""
        self.joined: set[str] = set()
        """The roles that have a player."""
        self._left: set[str] = set()

    @property
    def is_open(self) -> bool:
        """Whether a role may still join."""
        return self._lost is None and len(self.joined) < len(self._roles)

    def join(self, role: str) -> None:
        """Let a player have the role."""
        self.joined.add(role)

    async def begin(self, role: str) -> ChatTurn:
        """Begin the game if this role was the last to join, then wait for its first turn, or for its end."""
        if not self._has_begun and len(self.joined) == len(self._roles):
            self._has_begun = True
            await self._change(self._begin)
        return await self._next_turn(role)

    async def reply(self, role: str, text: str) -> ChatTurn:
        """Reply for the role, wait for its next turn or its end, and return what it has earned until then."""
        await self._change(partial(self._started_game.reply, role, text))
        return await self._next_turn(role)

    async def give_up(self, role: str) -> None:
        """End the game for the others because this role cannot go on."""
        await self._change(partial(self._started_game.leave, role))

    def messages(self, role: str) -> list[ChatMessage]:
        """Return all that the role has read and written."""
        return self._started_game.messages(role)

    def leave(self, role: str, *, over: bool) -> Future[None] | None:
        """Give the role back; return the future of the game's closing if it was the last one.

        If the role's part is not ``over``, the game is lost for those who still play.
        """
        if not over:
            self._lose(EpisodeLost(f"{self._name}: the rollout of {role} ended before the game"))
        self._left.add(role)
        if self._left < self.joined:
            return None
        closing = self._thread.call(self._close)
        self._thread.end()
        return closing

    @property
    def _started_game(self) -> ChatGame:
        if self._game is None:
            raise RuntimeError(f"{self._name}: the game has not begun")
        return self._game

    def _begin(self) -> None:
        self._game = self._make()
        self._game.reset(self._seed, self._options)

    def _close(self) -> None:
        if self._game is not None:
            self._game.close()

    async def _change(self, change: Callable[[], None]) -> None:
        """Run a change of the game in its thread, and wake those who wait for it."""
        try:
            self._turns = await asyncio.wrap_future(self._thread.call(partial(self._changed_by, change)))
        except BaseException as error:
            text = f"{self._name}: {type(error).__name__}: {error}"
            self._lose(EpisodeLost(text, fault_from(error)))
            raise
        self._wake()

    def _changed_by(self, change: Callable[[], None]) -> dict[str, bool]:
        change()
        game = self._started_game
        return {role: game.ending(role) is not None or game.must_reply(role) for role in self._roles}

    async def _next_turn(self, role: str) -> ChatTurn:
        try:
            async with asyncio.timeout(self._patience):
                while self._lost is None and not (self._turns and self._turns[role]):
                    await self._changed.wait()
        except TimeoutError:
            self._lose(EpisodeLost(self._why_late(role)))
        if self._lost is not None:
            raise EpisodeLost(str(self._lost), self._lost.fault) from self._lost
        return self._started_game.take_turn(role)

    def _lose(self, error: EpisodeLost) -> None:
        self._lost = self._lost or error
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _why_late(self, role: str) -> str:
        waited = f"{self._name}: {role} has waited {self._patience:g} s for "
        if self._turns is not None:
            return waited + "a turn; give a higher patience= if replies take as long"
        missing = ", ".join(one for one in self._roles if one not in self.joined)
        return waited + f"{missing or 'the game'}; all roles must be played at once, in one event loop"
