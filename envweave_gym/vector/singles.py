"""Vectors of single environments in this process, which step in turn or in threads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial, wraps
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from envweave_gym.core.arguments import call
from envweave_gym.core.faults import NotAvailable, shown
from envweave_gym.core.protocols import layers
from envweave_gym.episode.columns import Bools, Options, RecordColumns, Rows, options_of
from envweave_gym.episode.vector_infos import VectorInfos, infos_of_rows
from envweave_gym.vector.base import LocalVector
from envweave_gym.vector.processes import AsyncVector
from envweave_gym.vector.reset_arguments import ResetCall, as_batch
from envweave_gym.vector.row_groups import groups_of
from envweave_gym.vector.row_threads import RowThreads

RowInfos = list[dict[str, Any] | None]
"""Info of each row; ``None`` for a row without an info in this call."""


def vector_of_singles(
    name: str,
    make: Callable[[], gym.Env[Any, Any]],
    num_envs: int,
    how: str,
    options: dict[str, Any],
    group: int | None = None,
    *,
    concurrent: bool = False,
) -> VectorEnv[Any, Any, Any]:
    """Make a vector of single environments: in this process, or with ``how="async"`` each in its own process.

    ``make`` creates one environment, and ``options`` are arguments of Gymnasium's vector class. ``group``
    consecutive rows play the same episodes. With ``concurrent`` rows in this process step in parallel threads.
    """
    groups = groups_of(name, group, num_envs)
    kind: Any = AsyncVector if how == "async" else SyncVector
    vector = call(name, partial(kind, [make] * num_envs), options)
    if kind is SyncVector:
        vector.concurrent = concurrent and num_envs > 1
    vector.name, vector.groups = name, groups
    return vector


class SyncVector(LocalVector, SyncVectorEnv):
    """Vector of environments in this process that step one after the other, or with ``concurrent`` in threads.

    Gymnasium's class makes the environments. Steps and resets are defined here, so that the vector draws the
    seeds of its rows and refuses an invalid call before any row has moved. Threads give the same results: if a
    row raises, the other rows end their step before the error is raised.
    """

    concurrent = False
    _interrupted: RowThreads | None = None
    """Threads of a call that was interrupted, which may still run, or ``None``."""

    @wraps(SyncVectorEnv.__init__)
    def __init__(self, env_fns: list[Callable[[], gym.Env[Any, Any]]], **options: Any) -> None:
        """``options`` are those of ``gymnasium.vector.SyncVectorEnv``."""
        SyncVectorEnv.__init__(self, env_fns, **options)
        self._record = RecordColumns(self.num_envs, self.metadata["autoreset_mode"])
        self._seen: list[Any] = [None] * self.num_envs
        self._can_go_on = not any(getattr(one, "reproducible", False) for one in layers(self.envs[0]))
        self._goes_on = self._can_go_on
        """Whether rows that were seeded before are reset without a seed, so that their random generators continue."""
        self._seeded = np.zeros(self.num_envs, np.bool_)
        self._check_observations()

    def _check_observations(self) -> None:
        """Let a row whose observation cannot be stacked be lost by itself, or raise with its name."""
        for env in self.envs:
            if hasattr(type(env), "check_observations"):  # of RequestStream, around it nobody else's
                stream: Any = env
                stream.check_observations(self.single_observation_space)

    def close_extras(self, **_: Any) -> None:
        """Close the environments of all rows, and raise the first error after that."""
        failures: list[Exception] = []
        for env in getattr(self, "envs", ()):
            try:
                env.close()
            except Exception as error:  # noqa: BLE001 - raised when all are closed
                failures.append(error)
        if failures:
            self.closed = True
            raise failures[0]

    def _read_reset(self, seed: Any, options: Any) -> ResetCall:
        rows = self._interrupted.running() if self._interrupted is not None else []
        if rows:
            raise NotAvailable(
                f"{self.name}: the call that was interrupted goes on in rows {shown(rows)}; call reset() "
                "again later, or close() this vector and make another"
            )
        self._interrupted = None
        return super()._read_reset(seed, options)

    def resume(self, draws: NDArray[np.uint64], over: Bools, *, goes_on: bool) -> None:
        """Continue a vector that was lost with its server, as :meth:`LocalVector.resume` does."""
        super().resume(draws, over, goes_on=goes_on)
        self._goes_on = self._can_go_on and goes_on

    def _checked_actions(self, actions: Any) -> list[Any]:
        """Check the actions, and return a list with the action of each row."""
        self._record.check_step(self.name)
        actions = as_batch(actions)
        chosen = _choices(self.single_action_space, actions, self.num_envs)
        return self._rows_of_actions(actions) if chosen is None else chosen

    def _act(self, actions: list[Any], waiting: Rows) -> tuple[NDArray[np.float64], Bools, Bools, RowInfos]:
        infos: RowInfos = [None] * self.num_envs
        rewards: list[Any] = [0.0] * self.num_envs
        terminated: list[Any] = [False] * self.num_envs
        truncated = terminated.copy()
        acting = (
            np.delete(np.arange(self.num_envs), waiting).tolist() if waiting.size else range(self.num_envs)
        )
        for row, result in self._each(acting, lambda row: self.envs[row].step(actions[row])):
            self._seen[row], rewards[row], terminated[row], truncated[row], infos[row] = result
        ends = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        return np.array(rewards, np.float64), *ends, infos

    def _begin(
        self,
        rows: Rows,
        given: list[int | None] | None = None,
        options: Options = None,
        outcome: RowInfos | None = None,
    ) -> RowInfos:
        infos: RowInfos = [None] * self.num_envs if outcome is None else outcome
        seeds = dict(zip(rows.tolist(), self._seeds(rows, given), strict=True))

        def reset(row: int) -> Any:
            return self.envs[row].reset(seed=seeds[row], options=options_of(options, row))

        for row, result in self._each(seeds, reset):
            self._seen[row], infos[row] = result
        self._seeded[rows] = True
        return infos

    def _seeds(self, rows: Rows, given: list[int | None] | None) -> list[int | None]:
        """Return a given or drawn seed for each of ``rows``; ``None`` for a row whose random generator continues."""
        drawn: list[int] = self._record.draws.next(rows, given).tolist()
        if not self._goes_on:
            return list(drawn)
        keeps = self._seeded & [seed is None for seed in given or [None] * self.num_envs]
        return [None if keeps[row] else seed for row, seed in zip(rows.tolist(), drawn, strict=True)]

    def _each(self, rows: Collection[int], call: Callable[[int], Any]) -> Iterable[tuple[int, Any]]:
        """Make the call for each row, in turn or in threads; return the rows with their results, in order."""
        with self._moving():
            if not self.concurrent or len(rows) < 2:
                return zip(rows, [call(row) for row in rows], strict=True)
            # It stays set if run() is interrupted, so that a reset is refused while rows still move.
            self._interrupted = threads = RowThreads({row: partial(call, row) for row in rows})
            results = threads.run(lambda row: self.envs[row].close())
        self._interrupted = None
        return results.items()

    def _observed(self) -> Any:
        return _batch(self.single_observation_space, self._seen)

    def _infos(self, begun: Bools, outcome: RowInfos, options: Options = None) -> VectorInfos:
        return infos_of_rows(outcome)

    def _final(self, over: Bools, outcome: RowInfos) -> dict[str, Any]:
        final: RowInfos = [
            {"final_obs": seen, "final_info": info} if ended else None
            for seen, info, ended in zip(self._seen, outcome, over.tolist(), strict=True)
        ]
        return infos_of_rows(final)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_interrupted": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._check_observations()


def _choices(space: Space[Any], actions: Any, rows: int) -> list[Any] | None:
    """Check a batch of discrete actions as arrays, and return the action of each row.

    Return ``None`` if an action is wrong, or the space does not consist of ``Discrete`` and ``Dict`` alone; a
    slower check follows.
    """
    if isinstance(space, Discrete):
        if type(actions) is not np.ndarray or actions.shape != (rows,) or actions.dtype.kind not in "iu":
            return None
        inside = (actions >= space.start) & (actions < space.start + space.n)
        return list(actions) if inside.all() else None
    if type(space) is not Dict or type(actions) is not dict or actions.keys() != space.spaces.keys():
        return None
    chosen: list[Any] = [{} for _ in range(rows)]
    for key, inner in space.spaces.items():
        column = _choices(inner, actions[key], rows)
        if column is None:
            return None
        for row, choice in zip(chosen, column, strict=True):
            row[key] = choice
    return chosen


def _batch(space: Space[Any], rows: list[Any]) -> Any:
    """Stack observations like :func:`gymnasium.vector.utils.concatenate`, but faster for scalars."""
    if type(space) is Dict:
        return {key: _batch(inner, [row[key] for row in rows]) for key, inner in space.spaces.items()}
    if isinstance(space, Box | Discrete) and space.shape == ():
        return np.array(rows).astype(space.dtype, casting="same_kind", copy=False)
    return concatenate(space, rows, create_empty_array(space, len(rows), fn=np.zeros))
