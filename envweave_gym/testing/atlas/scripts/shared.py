"""What all players of the atlas's scripts have in common."""

from __future__ import annotations

from typing import Any


def after(seed: Any, trace: list[Any]) -> Any:
    """Return the seed of the episode after this trace; ``None`` without a seed."""
    return None if seed is None else seed + len(trace)


def parts(result: Any) -> tuple[Any, ...]:
    """Return the parts of what reset or step returned, in the order of PARTS; ``None`` for those that reset lacks."""
    assert isinstance(result, tuple), f"reset or step returned {type(result)}, not a tuple"
    assert len(result) in (2, 5), f"reset or step returned {len(result)} values, not 2 or 5"
    return result if len(result) == 5 else (result[0], None, None, None, result[1])
