"""Seeds of episodes, and random draws by hashing: the same numbers on every backend.

Every reset that reaches an environment carries an explicit seed. If the caller gives none, it is drawn from
the last given seed and the number of resets since then. So the single, the vector and the remote form of an
environment play the same episodes. Native vector environments draw noise by hashing ``(episode key, step)``
instead of keeping a generator for each row: a thousand draws cost microseconds.

The hash is SplitMix64, on Python ints and on ``uint64`` arrays: ``mix(key + n * GOLDEN)`` is ``mix(key, n)``,
so a row that draws at every step can keep a state and add :data:`GOLDEN` to it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.core import ActType, ObsType
from gymnasium.utils.seeding import np_random
from numpy.typing import NDArray

from envweave_gym.core.faults import InvalidArgument, shown

# The constants of SplitMix64.
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_SALT = 0x5DEECE66D5DEECE6  # keeps drawn seeds apart from an environment's draws, which hash the seed itself


def constant(value: int) -> NDArray[np.uint64]:
    """Return ``value`` as a 0-d array: NumPy would convert any other scalar at every operation."""
    return np.array(value & _MASK, np.uint64)


GOLDEN = constant(_GOLDEN)
_C_MIX_1, _C_MIX_2, _C_SALT = constant(_MIX_1), constant(_MIX_2), constant(_SALT)
_C_27, _C_30, _C_31, _C_33 = constant(27), constant(30), constant(31), constant(33)

SEED_BITS = 31
"""Bits of a drawn seed: it fits a C int, which many environments require."""


def mix(key: int, step: int = 0) -> int:
    """Return a 64-bit hash of ``(key, step)``; keys are taken modulo 2**64."""
    z = (key + (step + 1) * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)


def mix_many(keys: NDArray[np.uint64], step: int = 0) -> NDArray[np.uint64]:
    """Return :func:`mix` of every key of an array."""
    z = keys + (constant((step + 1) * _GOLDEN) if step else GOLDEN)
    z ^= z >> _C_30
    z *= _C_MIX_1
    z ^= z >> _C_27
    z *= _C_MIX_2
    z ^= z >> _C_31
    return z


def chance(probability: float) -> int:
    """Return the threshold that a 64-bit hash, such as ``mix(key, step)``, is below with this probability."""
    return int(probability * 2.0**64)


def draw_seed(base: int, count: int) -> int:
    """Return the seed of the ``count``-th reset without a seed after a reset with the seed ``base``."""
    return mix((base & _MASK) ^ _SALT, count) >> (64 - SEED_BITS)


def fresh_seed() -> int:
    """Return a random seed from the operating system."""
    return secrets.randbits(SEED_BITS)


def checked_seed(seed: Any, name: str, call: str = "reset") -> int:
    """Return ``seed`` as a Python int; raise ``InvalidArgument`` unless it is an int of 64 bits.

    ``name`` and ``call`` name the environment and the method in the error.
    """
    is_number = isinstance(seed, int | np.integer) and not isinstance(seed, bool | np.timedelta64)
    if is_number and 0 <= int(seed) <= _MASK:
        return int(seed)
    raise InvalidArgument(
        f"{name}: {call}(seed={shown(seed)}) is not a seed; give None or an int from 0 to 2**64 - 1"
    )


class Seeds:
    """Generator of the seeds of one environment's resets."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._state: int | None = None

    def next(self, seed: Any) -> int:
        """Return the given seed; for ``None``, draw one from the last given seed, as :func:`draw_seed` does."""
        if seed is not None:
            seed = checked_seed(seed, self._name)
            self._state = (seed ^ _SALT) + _GOLDEN
            return seed
        if self._state is None:
            self._state = (fresh_seed() ^ _SALT) + _GOLDEN
        self._state = z = (self._state + _GOLDEN) & _MASK  # mix() inlined: some resets cost as little as this
        z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
        z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
        return (z ^ (z >> 31)) >> (64 - SEED_BITS)


class SeedRows:
    """Generator of the seeds of a vector's rows, in arrays; each row gets the same ones as from :class:`Seeds`."""

    def __init__(self, rows: int) -> None:
        # 31 bits, like every drawn seed.
        fresh = np.random.SeedSequence().generate_state(rows, np.uint64) >> _C_33
        self.states = (fresh ^ _C_SALT) + GOLDEN
        """The state of each row's generator; its hash is the row's next seed."""

    def upcoming(self) -> NDArray[np.uint64]:
        """Return the seeds that the rows would draw next, without drawing them."""
        return mix_many(self.states) >> _C_33

    def next(self, rows: NDArray[np.intp], given: Sequence[int | None] | None = None) -> NDArray[np.uint64]:
        """Return the next seeds of ``rows``.

        ``given`` has an entry for every row; for ``None`` a seed is drawn.
        """
        states = self.states[rows]
        seeds = mix_many(states) >> _C_33
        states += GOLDEN
        for index, row in enumerate([] if given is None else rows.tolist()):
            seed = None if given is None else given[row]
            if seed is not None:
                seeds[index], states[index] = seed, ((seed ^ _SALT) + _GOLDEN) & _MASK
        self.states[rows] = states
        return seeds


class HashedRandomness(gym.Env[ObsType, ActType]):
    """A ``gymnasium.Env`` whose random numbers are hashes, and which builds ``np_random`` only on access.

    Building a generator at every seeded reset costs as much as several steps of a small environment.
    """

    _generator: np.random.Generator | None = None

    @property
    def _np_random(self) -> np.random.Generator | None:
        if self._generator is None and self._np_random_seed is not None:
            self._generator, _ = np_random(self._np_random_seed)
        return self._generator

    @_np_random.setter
    def _np_random(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, value: np.random.Generator | None
    ) -> None:
        self._generator = value

    def seed_late(self, seed: int | None) -> None:
        """Seed the environment as ``gymnasium.Env.reset`` does, but build the generator on first access."""
        if seed is not None:
            self._np_random_seed, self._generator = seed, None

    def episode_key(self, seed: int | None) -> int:
        """Seed the environment and return the key for the hashes of the episode: the seed, or a drawn number."""
        self.seed_late(seed)
        return int(self.np_random.integers(1 << SEED_BITS)) if seed is None else seed & _MASK
