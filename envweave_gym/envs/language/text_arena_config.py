"""The constructor arguments of the games of TextArena."""

from __future__ import annotations

from typing import Annotated, Any

from envweave_gym.core.arguments import check_int
from envweave_gym.core.config import Config, local, wire
from envweave_gym.core.faults import InvalidArgument, shown

MAX_PLAYERS = 15
"""Limit of players; the largest games of TextArena have 15."""


class TextArenaConfig(Config, frozen=True, kw_only=True):
    """The arguments of ``envweave/TextArena-v0``."""

    game: Annotated[str, wire("a name of TextArena's registry, such as `Poker-v0` or `Chess-v0-train`")] = (
        "TicTacToe-v0"
    )
    players: Annotated[int | None, wire("their number; `None` for the smallest that the game takes")] = None
    options: Annotated[dict[str, Any] | None, local("arguments of the game's own constructor")] = None
    render_mode: Annotated[str | None, local('`"ansi"`, `"human"` or none')] = None

    def __post_init__(self) -> None:
        if not isinstance(self.game, str):
            raise InvalidArgument(f"game={shown(self.game)} is no name of a game; give one like 'Poker-v0'")
        check_int("players", self.players, "no number of players", 1, MAX_PLAYERS, or_none=True)
        if not isinstance(self.options, dict | None):
            raise InvalidArgument(f"options={shown(self.options)} is neither a dict nor None")
