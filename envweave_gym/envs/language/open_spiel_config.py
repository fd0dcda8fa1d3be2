"""The constructor arguments of the games of OpenSpiel."""

from __future__ import annotations

from typing import Annotated, Any

from envweave_gym.core.config import Config, local, wire
from envweave_gym.core.faults import InvalidArgument, shown


class OpenSpielConfig(Config, frozen=True, kw_only=True):
    """The arguments of ``envweave/OpenSpiel-v0``."""

    game: Annotated[str, wire("a short name of OpenSpiel's registry, such as `connect_four`")] = "tic_tac_toe"
    config: Annotated[
        dict[str, Any] | None, wire("parameters of the game, such as `{'players': 3}` of `kuhn_poker`")
    ] = None
    render_mode: Annotated[str | None, local('`"ansi"`, `"human"` or none')] = None

    def __post_init__(self) -> None:
        if not isinstance(self.game, str):
            raise InvalidArgument(
                f"game={shown(self.game)} is no name of a game; give one like 'connect_four'"
            )
        if not isinstance(self.config, dict | None):
            raise InvalidArgument(f"config={shown(self.config)} is neither a dict nor None")
