"""Text rendering and argument checks for all games."""

from __future__ import annotations

from typing import Any

from envweave_gym.core.arguments import check_render_mode
from envweave_gym.core.faults import InvalidArgument, shown

RESET_OPTIONS = ("options",)
"""Name of the reset option that PettingZoo's own tests pass; games ignore it."""


def check_arguments(name: str, game: Any, max_cycles: Any, render_mode: Any) -> None:
    """Raise ``InvalidArgument`` for an unknown render mode, or ``max_cycles`` that is no positive int or ``None``.

    ``max_cycles`` is PettingZoo's name for the limit of each agent's actions; ``None`` means no limit.
    """
    if max_cycles is not None and (type(max_cycles) is not int or max_cycles < 1):
        given = f"max_cycles={shown(max_cycles)}"
        raise InvalidArgument(f"{name}: {given} is not a number of cycles; give an int >= 1 or None")
    check_render_mode(name, game, render_mode)


class TextRendering:
    """Mixin that renders a game as text: mode ``"ansi"`` returns the text, ``"human"`` prints it.

    A game lists this class before its other bases, so that these methods override theirs.
    """

    render_mode: str | None

    def picture(self) -> str:
        """Return the state of the game as text."""
        raise NotImplementedError

    def render(self) -> Any:
        """Return the picture in mode ``"ansi"``, print it in mode ``"human"``."""
        if self.render_mode == "ansi":
            return self.picture()
        if self.render_mode == "human":
            print(self.picture())
        return None

    def show(self) -> None:
        """Print the picture in mode ``"human"``; games call this after every change."""
        if self.render_mode == "human":
            self.render()

    def close(self) -> None:
        """Do nothing: games hold no resources."""
