"""The text rendering and the argument checks that all games share."""

from __future__ import annotations

from typing import Any

from envweave_gym.core.arguments import check_render_mode
from envweave_gym.core.faults import InvalidArgument, shown

RESET_OPTIONS = ("options",)
"""The reset option that PettingZoo's own tests pass; it changes nothing."""


def check_arguments(name: str, game: Any, max_cycles: Any, render_mode: Any) -> None:
    """Refuse an unknown render mode, and a ``max_cycles`` that is neither a positive int nor ``None``.

    PettingZoo calls the limit of each agent's actions ``max_cycles``; ``None`` sets none.
    """
    if max_cycles is not None and (type(max_cycles) is not int or max_cycles < 1):
        given = f"max_cycles={shown(max_cycles)}"
        raise InvalidArgument(f"{name}: {given} is not a number of cycles; give an int >= 1 or None")
    check_render_mode(name, game, render_mode)


class TextRendering:
    """Renders a game as text: mode ``"ansi"`` returns it, ``"human"`` prints it.

    Put it before the game's other bases.
    """

    render_mode: str | None

    def picture(self) -> str:
        """The state of the game as text."""
        raise NotImplementedError

    def render(self) -> Any:
        """Return or print the picture, as the render mode says."""
        if self.render_mode == "ansi":
            return self.picture()
        if self.render_mode == "human":
            print(self.picture())
        return None

    def show(self) -> None:
        """Print the picture in mode ``"human"``; games call it after every change."""
        if self.render_mode == "human":
            self.render()

    def close(self) -> None:
        """Do nothing: games hold no resources."""
