"""Native vectors and the same as single environments in turn, for the tests that compare the two."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from envweave_gym.episode.vector_infos import StreamRows

LINE, FIX = "envweave/LineWorld-v0", "envweave/CodeFix-v0"
LIMITS = {LINE: 6, FIX: 2}


def native(
    env_id: str = LINE, rows: int = 5, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any
) -> Any:
    kwargs = {"max_steps": LIMITS[env_id], **kwargs}
    return gym.make_vec(env_id, num_envs=rows, autoreset_mode=mode.value, **kwargs)


def sync(
    env_id: str = LINE, rows: int = 5, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any
) -> Any:
    kwargs = {"max_steps": LIMITS[env_id], **kwargs}
    return SyncVectorEnv([lambda: gym.make(env_id, **kwargs)] * rows, autoreset_mode=mode)


def expect_equal(left: Any, right: Any, where: str = "result") -> None:
    """The same values of the same types, in whatever they are packed."""
    left, right = (np.asarray(one) if isinstance(one, StreamRows) else one for one in (left, right))
    if isinstance(left, dict):
        assert set(left) == set(right), where
        for key, value in left.items():
            expect_equal(value, right[key], f"{where}[{key!r}]")
    elif isinstance(left, tuple):
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            expect_equal(one, other, f"{where}[{number}]")
    elif isinstance(left, np.ndarray):
        assert isinstance(right, np.ndarray), where
        assert (left.dtype, left.shape) == (right.dtype, right.shape), where
        if left.dtype == object:
            for number, (one, other) in enumerate(zip(left, right, strict=True)):
                expect_equal(one, other, f"{where}[{number}]")
        else:
            assert left.tolist() == right.tolist(), where
    else:
        assert type(left) is type(right), where
        assert left == right, where


def actions_of(env: Any, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, env.single_action_space.n, env.num_envs)
