"""The constructor arguments of the environments of GEM."""

from __future__ import annotations

from typing import Annotated, Any

from envweave_gym.core.config import Config, local, wire
from envweave_gym.core.faults import InvalidArgument, shown


class GEMConfig(Config, frozen=True, kw_only=True):
    """The arguments of ``envweave/GEM-v0``."""

    gem_id: Annotated[str, wire("a name of GEM's registry, such as `game:Sudoku-v0-easy`")] = (
        "game:GuessTheNumber-v0-easy"
    )
    options: Annotated[dict[str, Any] | None, local("arguments of the environment's own constructor")] = None
    render_mode: Annotated[str | None, local('`"ansi"` or none')] = None

    def __post_init__(self) -> None:
        if not isinstance(self.gem_id, str):
            raise InvalidArgument(
                f"gem_id={shown(self.gem_id)} is no name; give one like 'game:Sudoku-v0-easy'"
            )
        if not isinstance(self.options, dict | None):
            raise InvalidArgument(f"options={shown(self.options)} is neither a dict nor None")
