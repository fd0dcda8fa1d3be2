"""Vectors as a server steps them: rows of single environments with as little around them as can be."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.protocols import layers
from envweave_gym.core.seeding import SeedRows
from envweave_gym.episode.stream import Stream
from envweave_gym.episode.vector_infos import VectorInfos
from envweave_gym.vector.calls import Bools, Options, options_of
from envweave_gym.vector.native import NativeVectorEnv
from envweave_gym.vector.singles import SyncVector
from envweave_gym.wire.row_streams import RowsApart, given_streams
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.parallel_stream import ParallelStream
from envweave_gym.wrappers.request_stream import RequestStream


def as_rows(env: Any) -> Any:
    """``env``, or where it is a vector the same in a form that costs less to send."""
    if isinstance(env, NativeVectorEnv):
        env.apart = RowsApart
    return Rows(env) if type(env) is SyncVector else env


def reset_rows(env: VectorEnv[Any, Any, Any], told: dict[str, Any], options: Any) -> Any:
    """Reset a vector as the client tells that keeps count of its draws.

    It tells the ``seed`` that was given to it, the state of each row's ``draws``, and which rows are
    ``over``: so a new session goes on where a lost one ended. ``goes_on`` lets rows that have been reset
    before be reset without the seed that they draw.
    """
    if isinstance(env, NativeVectorEnv | Rows):
        draws = _checked(told, "draws", np.uint64, env.num_envs)
        env.resume(draws, _checked(told, "over", np.bool_, env.num_envs))
    if isinstance(env, Rows):
        env.goes_on = goes_on(env) and told.get("goes_on") is not False
    return env.reset(seed=told.get("seed"), options=options)


def goes_on(env: Any) -> bool:
    """Whether resets without a seed reach the environment as such, all but the first."""
    inner = env.envs[0] if isinstance(env, SyncVector) else env
    streams = (one for one in layers(inner) if isinstance(one, RequestStream | AECStream | ParallelStream))
    return any(not one.reproducible for one in streams)


def _checked(told: dict[str, Any], name: str, dtype: type[np.generic], rows: int) -> NDArray[Any]:
    given = told.get(name)
    if not (isinstance(given, np.ndarray) and given.dtype == dtype and given.shape == (rows,)):
        raise InvalidArgument(
            f"the seed of a vector names {name}={shown(given)}; give an array of {rows} {dtype.__name__}"
        )
    return given


class Rows(SyncVector):
    """A :class:`SyncVector` that gathers infos faster, and draws the seeds of its rows itself.

    Its streams are ready to be sent as they are.
    """

    def __init__(self, vector: SyncVector) -> None:
        """Take over the environments of ``vector``, which must not be used any longer."""
        self.__dict__.update(vector.__dict__)
        self._mode: AutoresetMode = self.metadata["autoreset_mode"]
        self._everyone = np.ones(self.num_envs, np.bool_)
        self._draws = SeedRows(self.num_envs)
        self._over = np.zeros(self.num_envs, np.bool_)
        self._seen: list[Any] = [None] * self.num_envs
        self._chosen: list[Any] = []
        self.goes_on = goes_on(vector)
        self._seeded = np.zeros(self.num_envs, np.bool_)
        """The rows whose generators have been seeded, and can go on."""

    def resume(self, draws: NDArray[np.uint64], over: Bools) -> None:
        """Go on drawing seeds, and waiting for resets of rows, as another vector would that was lost."""
        self._draws._states, self._over = draws, over

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start episodes in all rows, or in those of ``options["reset_mask"]``."""
        call, told = self._read_reset(seed, options), self._untold()
        mask = self._everyone if call.mask is None else call.mask
        with self._moving():
            self._begin(mask, told, call.seeds, call.options)
            observations = _batch(self.single_observation_space, self._seen)
        self._reset_done()
        return observations, self._gathered(told)

    def step(self, actions: Any) -> tuple[Any, NDArray[np.float64], Bools, Bools, dict[str, Any]]:
        """Act in every row."""
        self._step_argument(actions)
        waiting = self._over if self._mode is AutoresetMode.NEXT_STEP else ~self._everyone
        told, final = self._untold(), {}
        with self._moving():
            rewards, terminated, truncated = self._act(waiting, told)
            over = terminated | truncated
            if self._mode is AutoresetMode.SAME_STEP and over.any():
                waiting, final = over, self._final(over, told)
            self._begin(waiting, told)
            observations = _batch(self.single_observation_space, self._seen)
        self._step_done(terminated, truncated)
        return observations, rewards, terminated, truncated, VectorInfos(self._gathered(told) | final)

    def _check_actions(self, actions: Any) -> None:
        """Take the actions apart, and keep those of the rows for the step."""
        chosen = _choices(self.single_action_space, actions, self.num_envs)
        if chosen is None:
            super()._check_actions(actions)
            chosen = list(iterate(self.action_space, actions))
        self._chosen = chosen

    def _act(self, waiting: Bools, told: _Told) -> tuple[NDArray[np.float64], Bools, Bools]:
        """Act in the rows that do not wait for their reset."""
        rewards: list[Any] = [0.0] * self.num_envs
        terminated: list[Any] = [False] * self.num_envs
        truncated = terminated.copy()
        seen, rows = self._seen, zip(self.envs, self._chosen, waiting.tolist(), strict=True)
        if self.concurrent:
            acting = (~waiting).nonzero()[0].tolist()
            calls = {row: partial(self.envs[row].step, self._chosen[row]) for row in acting}
            for row, result in self._each(calls).items():
                seen[row], rewards[row], terminated[row], truncated[row], told[row] = result
        else:
            for row, (env, action, waits) in enumerate(rows):
                if not waits:
                    seen[row], rewards[row], terminated[row], truncated[row], told[row] = env.step(action)
        return np.array(rewards, np.float64), np.array(terminated, np.bool_), np.array(truncated, np.bool_)

    def _begin(
        self, mask: Bools, told: _Told, given: list[int | None] | None = None, options: Options = None
    ) -> None:
        """Start episodes in the rows of ``mask``, with the seeds given or drawn, or to go on without one."""
        rows = mask.nonzero()[0]
        seeds: list[Any] = (self._draws.next(rows, given) if rows.size else rows).tolist()
        if self.goes_on:
            own = given or [None] * self.num_envs
            chosen = zip(rows.tolist(), seeds, strict=True)
            seeds = [None if self._seeded[row] and own[row] is None else seed for row, seed in chosen]
        resets = {
            row: partial(self.envs[row].reset, seed=seed, options=options_of(options, row))
            for row, seed in zip(rows.tolist(), seeds, strict=True)
        }
        for row, result in self._each(resets).items():
            self._seen[row], told[row] = result
            self._seeded[row] = True

    def _final(self, over: Bools, told: _Told) -> dict[str, Any]:
        """What rows that have just ended say last, before their resets take its place."""
        infos: dict[str, Any] = {}
        for row in over.nonzero()[0].tolist():
            infos = self._add_info(infos, {"final_obs": self._seen[row]}, row)
        ended = [info if ends else None for info, ends in zip(told, over.tolist(), strict=True)]
        return VectorInfos(infos, final_info=self._gathered(ended), _final_info=over.copy())

    def _untold(self) -> _Told:
        return [None] * self.num_envs

    def _gathered(self, told: _Told) -> dict[str, Any]:
        """The infos of the rows as those of a vector, with streams that are ready to be sent."""
        streams: list[Stream | None] = [None if info is None else info["stream"] for info in told]
        seq = np.array([0 if info is None else info["seq"] for info in told], np.int64)
        known = np.array([info is not None for info in told])
        more: dict[str, Any] = {}
        for row, info in enumerate(told):
            if info is not None and len(info) > len(_OWN):
                rest = {key: value for key, value in info.items() if key not in _OWN}
                more = self._add_info(more, rest, row)
        own = {"stream": given_streams(streams), "_stream": known, "seq": seq, "_seq": known}
        return VectorInfos(own, **more)


_Told = list[dict[str, Any] | None]
"""The info of each row that says something."""

_OWN = ("stream", "seq")


def _choices(space: Space[Any], actions: Any, rows: int) -> list[Any] | None:
    """The actions of rows that choose among some, if all of them are right: checked at once, as arrays."""
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
    """The observations of rows as :func:`gymnasium.vector.utils.concatenate` puts them together.

    That takes its time over numbers without a shape, which are gathered here as a list is.
    """
    if type(space) is Dict:
        return {key: _batch(inner, [row[key] for row in rows]) for key, inner in space.spaces.items()}
    if isinstance(space, Box | Discrete) and space.shape == ():
        return np.array(rows).astype(space.dtype, casting="same_kind", copy=False)
    return concatenate(space, rows, create_empty_array(space, len(rows), fn=np.zeros))
