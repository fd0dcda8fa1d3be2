"""Checks of the arguments of a vector's ``reset``, which refuse a wrong one before a row has moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from envweave_gym.core.arguments import check_options
from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.seeding import checked_seed
from envweave_gym.episode.columns import Bools, Options, options_of
from envweave_gym.vector.row_groups import Groups

OF_ROWS = ("reset_mask", "rows")
"""Reset options of the vector itself: the rows to reset, and options for each row."""


class ResetCall(NamedTuple):
    """Checked arguments of a vector's reset."""

    seeds: list[int | None] | None
    """A seed for every row; ``None`` if the rows draw their own."""
    mask: Bools | None
    """Mask of the rows to reset; ``None`` for all."""
    options: Options

    def of_row(self, row: int) -> dict[str, Any]:
        """Return the arguments for the reset of one row, as for a single environment."""
        return {"seed": self.seeds and self.seeds[row], "options": options_of(self.options, row)}


def read_reset(
    name: str,
    num_envs: int,
    seed: Any,
    options: Any,
    metadata: Mapping[str, Any],
    *,
    begun: bool,
    groups: Groups | None = None,
) -> ResetCall:
    """Check the arguments of a reset; ``begun`` says whether all rows have been reset before.

    ``name`` is for error messages. With ``groups``, the rows of a group get the same seed, drawn if none is
    given.
    """
    seeds = _seeds_of_rows(name, num_envs, seed, groups)
    mask, rest = _mask_and_options(name, num_envs, options, metadata, begun)
    return ResetCall(seeds if groups is None else groups.draw(seeds, mask), mask, rest)


def _seeds_of_rows(name: str, num_envs: int, seed: Any, groups: Groups | None) -> list[int | None] | None:
    """Expand ``seed`` to a seed for every row, as Gymnasium does; return ``None`` for ``None``."""
    if isinstance(seed, np.ndarray):
        seed = seed.tolist()
    if isinstance(seed, list | tuple):
        given = [None if one is None else checked_seed(one, name) for one in seed]
        if groups is not None:
            return groups.of_rows(name, given)
        if len(given) != num_envs:
            raise InvalidArgument(
                f"{name}: {len(given)} seeds were given; give one for each of {num_envs} rows"
            )
        return given
    if seed is None:
        return None
    first, size = checked_seed(seed, name), 1 if groups is None else groups.size
    if first + num_envs // size > 1 << 64:
        step = "i" if size == 1 else f"i // {size}"
        raise InvalidArgument(
            f"{name}: reset(seed={first}) has no {num_envs // size} seeds from there on; row i takes "
            f"seed + {step}, up to 2**64 - 1"
        )
    return [first + row // size for row in range(num_envs)]


def as_batch(actions: Any) -> Any:
    """Convert arrays of other libraries to NumPy arrays, and iterators to tuples."""
    if isinstance(actions, Iterator):
        return tuple(actions)
    if isinstance(actions, np.ndarray) or not hasattr(actions, "__array__"):
        return actions
    try:
        return np.asarray(actions)
    except (TypeError, ValueError, RuntimeError):  # it is on a GPU, or has a gradient
        return actions


def _mask_and_options(
    name: str, num_envs: int, options: Any, metadata: Mapping[str, Any], begun: bool
) -> tuple[Bools | None, Options]:
    """Split reset options into ``reset_mask`` (``None`` for all rows) and the environments' options."""
    if not isinstance(options, dict):
        check_options(name, options, metadata, also=OF_ROWS)
        return None, None
    rest = {key: value for key, value in options.items() if key not in OF_ROWS}
    check_options(name, rest, metadata, also=OF_ROWS)
    mask = options.get("reset_mask")
    if mask is not None:
        _check_mask(f"{name}: options['reset_mask']", (num_envs,), mask, begun)
        mask = mask.copy()
    if options.get("rows") is None:
        return mask, rest
    return mask, _options_of_rows(name, num_envs, options["rows"], rest, metadata)


def _options_of_rows(
    name: str, num_envs: int, rows: Any, shared: dict[str, Any], metadata: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the options of each row: the shared options, updated with the row's dict in ``rows``.

    ``rows`` is the value of ``options["rows"]``. If it has fewer dicts than the vector has rows, it is repeated: row
    ``i`` gets ``rows[i % len(rows)]``.
    """
    fits = isinstance(rows, list | tuple) and 1 <= len(rows) <= num_envs
    if not fits or not all(isinstance(one, dict) for one in rows):
        raise InvalidArgument(
            f"{name}: options['rows'] is {shown(rows)}; give a list of 1 to {num_envs} dicts, the reset "
            "options of one row each"
        )
    for one in rows:
        check_options(name, one, metadata)
    return [{**shared, **rows[row % len(rows)]} for row in range(num_envs)]


def _check_mask(option: str, shape: tuple[int], mask: Any, begun: bool) -> None:
    if not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == shape):
        raise InvalidArgument(f"{option} is {shown(mask)}; give a bool array of shape {shape}")
    if not mask.any():
        raise InvalidArgument(f"{option} names no row to reset; set one to True")
    if not begun and not mask.all():
        raise InvalidArgument(f"{option} leaves out rows that never began; call reset() without it first")
