"""How the games here are shown: as text, which the render mode says to give back or to print."""

from __future__ import annotations

from typing import Any


class TextRendering:
    """The rendering of a game that can say in text how it stands; put it before the game's other bases."""

    render_mode: str | None

    def picture(self) -> str:
        """The game as it stands."""
        raise NotImplementedError

    def render(self) -> Any:
        """The picture, where the mode is ``"ansi"``; ``"human"`` prints it."""
        if self.render_mode == "ansi":
            return self.picture()
        if self.render_mode == "human":
            print(self.picture())
        return None

    def show(self) -> None:
        """Print the picture where a person watches: games call it after every change."""
        if self.render_mode == "human":
            self.render()

    def close(self) -> None:
        """Nothing is open."""
