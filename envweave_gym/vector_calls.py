"""What ``reset`` and ``step`` of a vector take: one sentence about anything else, before a row has moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envweave_gym.arguments import check_options
from envweave_gym.faults import InvalidArgument, ResetNeeded, shown
from envweave_gym.seeding import checked_seed

Bools = NDArray[np.bool_]


def seeds_of_rows(name: str, num_envs: int, seed: Any) -> list[int | None] | None:
    """A seed for every row, or ``None`` where the rows draw their own."""
    if isinstance(seed, np.ndarray):
        seed = seed.tolist()
    if isinstance(seed, list | tuple):
        if len(seed) != num_envs:
            raise InvalidArgument(
                f"{name}: {len(seed)} seeds were given; give one for each of {num_envs} rows"
            )
        return [None if one is None else checked_seed(one, name) for one in seed]
    if seed is None:
        return None
    first = checked_seed(seed, name)
    if first + num_envs > 1 << 64:
        raise InvalidArgument(
            f"{name}: reset(seed={first}) has no {num_envs} seeds from there on; row i takes seed + i, up to "
            "2**64 - 1"
        )
    return [first + row for row in range(num_envs)]


def as_batch(actions: Any) -> Any:
    """Arrays of other libraries as NumPy's, and what gives its rows one by one as a tuple of them."""
    if isinstance(actions, Iterator):
        return tuple(actions)
    if isinstance(actions, np.ndarray) or not hasattr(actions, "__array__"):
        return actions
    try:
        return np.asarray(actions)
    except (TypeError, ValueError, RuntimeError):  # it is on a GPU, or has a gradient
        return actions


def mask_and_options(
    name: str, num_envs: int, options: Any, metadata: Mapping[str, Any], *, begun: bool
) -> tuple[Bools | None, dict[str, Any]]:
    """The rows that ``options["reset_mask"]`` names, ``None`` where it names all, and the other options."""
    if isinstance(options, dict):
        rest = {key: value for key, value in options.items() if key != "reset_mask"}
        mask = options.get("reset_mask")
    else:
        rest, mask = options, None
    check_options(name, rest, metadata, also=("reset_mask",))
    if mask is not None:
        _check_mask(f"{name}: options['reset_mask']", (num_envs,), mask, begun)
        mask = mask.copy()
    return mask, rest or {}


def _check_mask(option: str, shape: tuple[int], mask: Any, begun: bool) -> None:
    if not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == shape):
        raise InvalidArgument(f"{option} is {shown(mask)}; give a bool array of shape {shape}")
    if not mask.any():
        raise InvalidArgument(f"{option} names no row to reset; set one to True")
    if not begun and not mask.all():
        raise InvalidArgument(f"{option} leaves out rows that never began; call reset() without it first")


def check_order(name: str, begun: bool, over: NDArray[np.intp]) -> None:
    """Refuse a step before the reset, and one of rows whose episodes are ``over``."""
    if not begun:
        raise ResetNeeded(f"{name}: step() was called before reset(); call reset() first")
    if over.size:
        raise ResetNeeded(
            f"{name}: step() was called after the episodes of rows {shown(over.tolist())} ended; "
            "call reset(options={'reset_mask': …}) for them"
        )
