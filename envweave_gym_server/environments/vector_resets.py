"""Resets of vectors on a server; their clients keep count of the seeds that each row draws."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.protocols import layers
from envweave_gym.vector.base import LocalVector
from envweave_gym.vector.native import NativeVectorEnv
from envweave_gym.vector.singles import SyncVector
from envweave_gym.wire.packed_streams import RowsApart
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.gym_stream import RequestStream
from envweave_gym.wrappers.parallel_stream import ParallelStream


def as_rows(env: Any) -> Any:
    """Return ``env``; change a native vector first to return last observations as :class:`RowsApart`.

    These cost less to send.
    """
    if isinstance(env, NativeVectorEnv):
        env.apart = RowsApart
    return env


def reset_rows(env: VectorEnv[Any, Any, Any], seeding: dict[str, Any], options: Any) -> Any:
    """Reset a vector with seeds that its client counts, so that a new session can replace a lost one.

    ``seeding`` has the caller's ``seed``, the state of each row's ``draws``, and the rows that are ``over``.
    With ``goes_on``, rows that were reset before are reset without a seed, not with the next seed that they
    draw.
    """
    if isinstance(env, LocalVector):
        draws = _checked(seeding, "draws", np.uint64, env.num_envs)
        over = _checked(seeding, "over", np.bool_, env.num_envs)
        env.resume(draws, over, goes_on=seeding.get("goes_on") is not False)
    return env.reset(seed=seeding.get("seed"), options=options)


def goes_on(env: Any) -> bool:
    """Return whether a reset without a seed, after the first one, reaches the environment without a seed."""
    inner = env.envs[0] if isinstance(env, SyncVector) else env
    streams = (one for one in layers(inner) if isinstance(one, RequestStream | AECStream | ParallelStream))
    return any(not one.reproducible for one in streams)


def _checked(seeding: dict[str, Any], name: str, dtype: type[np.generic], rows: int) -> NDArray[Any]:
    given = seeding.get(name)
    if not (isinstance(given, np.ndarray) and given.dtype == dtype and given.shape == (rows,)):
        raise InvalidArgument(
            f"the seed of a vector names {name}={shown(given)}; give an array of {rows} {dtype.__name__}"
        )
    return given
