"""What PettingZoo expects of any game: a limit called ``max_cycles``, and a reset that takes options."""

from __future__ import annotations

from typing import Any

from envweave_gym.core.arguments import check_render_mode
from envweave_gym.core.faults import InvalidArgument, shown

RESET_OPTIONS = ("options",)
"""What PettingZoo's own tests give to every reset; it changes nothing."""


def check_arguments(name: str, game: Any, max_cycles: Any, render_mode: Any) -> None:
    """Refuse what is no number of times that each agent may act (``None`` sets no limit), and no mode."""
    if max_cycles is not None and (type(max_cycles) is not int or max_cycles < 1):
        given = f"max_cycles={shown(max_cycles)}"
        raise InvalidArgument(f"{name}: {given} is not a number of cycles; give an int >= 1 or None")
    check_render_mode(name, game, render_mode)
