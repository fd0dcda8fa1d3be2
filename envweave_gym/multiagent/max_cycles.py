"""``max_cycles``, as PettingZoo calls the limit of a game: how often each agent may act."""

from __future__ import annotations

from typing import Any

from envweave_gym.faults import shown


def check_max_cycles(max_cycles: Any) -> None:
    """Refuse what is no limit; ``None`` sets none."""
    if max_cycles is not None and (type(max_cycles) is not int or max_cycles < 1):
        raise ValueError(
            f"max_cycles={shown(max_cycles)} is not a number of cycles; give an int >= 1 or None"
        )
