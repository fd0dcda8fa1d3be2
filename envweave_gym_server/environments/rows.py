"""Resets of vectors on a server, whose clients keep count of the seeds that the rows draw."""

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
from envweave_gym.wire.row_streams import RowsApart
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.gym_stream import RequestStream
from envweave_gym.wrappers.parallel_stream import ParallelStream


def as_rows(env: Any) -> Any:
    """``env``, or where it is a vector the same in a form that costs less to send."""
    if isinstance(env, NativeVectorEnv):
        env.apart = RowsApart
    return env


def reset_rows(env: VectorEnv[Any, Any, Any], seeding: dict[str, Any], options: Any) -> Any:
    """Reset a vector whose client counts the seeds that it draws, so that a session can replace a lost one.

    ``seeding`` has the ``seed`` that the caller gave, the state of each row's ``draws``, and the rows that
    are ``over``. ``goes_on`` lets rows that have been reset before be reset without the seed that they draw.
    """
    if isinstance(env, LocalVector):
        draws = _checked(seeding, "draws", np.uint64, env.num_envs)
        over = _checked(seeding, "over", np.bool_, env.num_envs)
        env.resume(draws, over, goes_on=seeding.get("goes_on") is not False)
    return env.reset(seed=seeding.get("seed"), options=options)


def goes_on(env: Any) -> bool:
    """Whether resets without a seed reach the environment as such, all but the first."""
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
