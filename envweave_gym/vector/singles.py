"""Vectors of single environments: Gymnasium's own, which refuse a bad call before any row has moved.

Gymnasium's classes find a wrong action when they reach its row. By then the rows before it have moved, and
where each row has a process, the one that was given it has ended for good.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
from gymnasium.error import AlreadyPendingCallError, CustomSpaceError
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState, _async_worker
from gymnasium.vector.utils import concatenate, iterate

from envweave_gym.core.actions import REFUSED, admission
from envweave_gym.core.arguments import call
from envweave_gym.core.faults import InvalidAction, NotAvailable, ResetNeeded, shown
from envweave_gym.core.protocols import state_of
from envweave_gym.vector.calls import Bools, ResetCall, as_batch, check_order, read_reset
from envweave_gym.vector.group_faults import GroupFaults
from envweave_gym.vector.row_groups import Groups, groups_of
from envweave_gym.vector.row_threads import RowThreads

_AGAIN = "close() this vector and make another"
_LAST_BREATH = 0.2
_NO_BATCH = (TypeError, ValueError, KeyError, IndexError, AttributeError)


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
    """``num_envs`` environments in turn, or with ``how="async"`` each in a process of its own.

    ``options`` are the arguments of Gymnasium's class; ``group`` consecutive rows play the same episodes.
    With ``concurrent`` the rows of this process are stepped at the same time, in threads.
    """
    groups = groups_of(name, group, num_envs)
    if how == "async":
        vector = call(name, partial(AsyncVector, [make] * num_envs), {"worker": _work, **options})
    else:
        vector = call(name, partial(SyncVector, [make] * num_envs), options)
        vector.concurrent = concurrent and num_envs > 1
    vector.name, vector.groups = name, groups
    return vector


class _Checked(VectorEnv[Any, Any, Any]):
    """What both vectors check in this process, ahead of Gymnasium's class."""

    name = "this vector"
    groups: Groups | None = None
    _begun = False
    _cut_short = ""
    _reset_rows: Bools | None = None
    _over: Bools
    _admit: Callable[[Any], Any] | None = None

    def _read_reset(self, seed: Any, options: Any) -> ResetCall:
        """The reset, once its arguments are known to be good."""
        call = read_reset(
            self.name, self.num_envs, seed, options, self.metadata, begun=self._begun, groups=self.groups
        )
        self._reset_rows = call.mask
        if self.groups is not None:
            self._group_faults.forget(call.mask)
        return call

    def _reset_done(self) -> None:
        rows = self._reset_rows
        over = np.zeros(self.num_envs, np.bool_) if rows is None else self._over & ~rows
        self._begun, self._over, self._cut_short = True, over, ""

    def _step_argument(self, actions: Any) -> Any:
        """The actions, once each of them is known to be good."""
        if self._cut_short:
            raise ResetNeeded(f"{self.name}: {self._cut_short} stopped the last call halfway; call reset()")
        disabled = self.metadata["autoreset_mode"] is AutoresetMode.DISABLED
        stuck = self._over.nonzero()[0] if self._begun and disabled else np.empty(0, np.intp)
        check_order(self.name, self._begun, stuck)
        actions = as_batch(actions)
        self._check_actions(actions)
        return actions

    def _check_actions(self, actions: Any) -> None:
        no_rows = isinstance(actions, str | Set) or (
            isinstance(actions, Mapping) and not isinstance(self.action_space, gym.spaces.Dict)
        )
        try:
            rows = [] if no_rows else list(iterate(self.action_space, actions))
        except (*_NO_BATCH, CustomSpaceError):
            rows = []
        if len(rows) != self.num_envs:
            raise InvalidAction(f"{self.name}: actions {shown(actions)} are not in {self.action_space}")
        if self._admit is None:
            self._admit = admission(self.single_action_space)
        for row, action in enumerate(rows):
            if self._admit(action) is REFUSED:
                given = shown(action.item() if isinstance(action, np.generic) else action)
                space = self.single_action_space
                raise InvalidAction(f"{self.name}: action {given} of row {row} is not in {space}")

    def _step_done(self, terminated: Bools, truncated: Bools) -> None:
        self._over = terminated | truncated

    @cached_property
    def _group_faults(self) -> GroupFaults:
        assert self.groups is not None
        return GroupFaults(self, self.groups)

    def _in_groups(self, results: Any) -> Any:
        """The results of a step, with the groups that lost a row ended or reset as a whole."""
        if self.groups is not None:
            results = self._group_faults.stepped(results)
            self._step_done(results[2], results[3])
        return results

    def state(self) -> Any:
        """What :func:`envweave_gym.state_of` gives: the counters and fields of each row."""
        return state_of(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_admit"}

    @contextmanager
    def _moving(self) -> Generator[None]:
        """While rows move: what stops them halfway leaves them nowhere, so that only a reset goes on."""
        try:
            yield
        except BaseException as error:
            self._begun, self._cut_short = False, type(error).__name__
            raise


class SyncVector(_Checked, SyncVectorEnv):
    """Environments of this process, stepped one after the other, or with ``concurrent`` in threads.

    Threads change nothing but the time it takes: every row has the same seeds and results, in the same order,
    and faults of its own. Where a row raises, the others end their step before that is raised.
    """

    concurrent = False
    _interrupted: RowThreads | None = None
    """Rows whose step went on when the call was interrupted."""

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes in all rows, or in those of ``options["reset_mask"]``.

        ``options["rows"]`` is a list of what each row is given beside the other options.
        """
        call = self._read_reset(seed, options)
        with self._moving():
            result = (
                self._reset_apart(call)
                if self.concurrent or isinstance(call.options, list)
                else super().reset(**_together(call))
            )
        self._reset_done()
        return result

    def _read_reset(self, seed: Any, options: Any) -> ResetCall:
        rows = self._interrupted.running() if self._interrupted is not None else []
        if rows:
            raise NotAvailable(
                f"{self.name}: the call that was interrupted goes on in rows {shown(rows)}; call reset() "
                f"again later, or {_AGAIN}"
            )
        self._interrupted = None
        return super()._read_reset(seed, options)

    def _reset_apart(self, call: ResetCall) -> tuple[Any, dict[str, Any]]:
        """Reset each row with options of its own."""
        rows = np.ones(self.num_envs, np.bool_) if call.mask is None else call.mask
        for column in (self._terminations, self._truncations, self._autoreset_envs):
            column[rows] = False
        infos: dict[str, Any] = {}
        chosen = rows.nonzero()[0].tolist()
        resets = {row: partial(self.envs[row].reset, **call.of_row(row)) for row in chosen}
        for row, (observation, info) in self._each(resets).items():
            self._env_obs[row] = observation
            infos = self._add_info(infos, info, row)
        return self._observed(), infos

    def step(self, actions: Any) -> tuple[Any, Any, Bools, Bools, dict[str, Any]]:
        """Act in every row."""
        actions = self._step_argument(actions)
        with self._moving():
            result = self._step_apart(actions) if self.concurrent else super().step(actions)
        self._step_done(result[2], result[3])
        return self._in_groups(result)

    def _step_apart(self, actions: Any) -> tuple[Any, Any, Bools, Bools, dict[str, Any]]:
        """Step each row in a thread, and put the results together as Gymnasium's class does."""
        rows = zip(self.envs, iterate(self.action_space, actions), self._autoreset_envs, strict=True)
        calls = [partial(_step_row, *row, self.autoreset_mode) for row in rows]
        infos: dict[str, Any] = {}
        for row, moved in self._each(dict(enumerate(calls))).items():
            self._env_obs[row], self._rewards[row] = moved.observation, moved.reward
            self._terminations[row], self._truncations[row] = moved.terminated, moved.truncated
            for info in moved.infos:
                infos = self._add_info(infos, info, row)
        self._autoreset_envs = np.logical_or(self._terminations, self._truncations)
        columns = (self._rewards.copy(), self._terminations.copy(), self._truncations.copy())
        return self._observed(), *columns, infos

    def _each(self, calls: Mapping[int, Callable[[], Any]]) -> dict[int, Any]:
        """Make the calls of rows, and return their results by row, in the order of the rows."""
        if not self.concurrent or len(calls) < 2:
            return {row: call() for row, call in calls.items()}
        self._interrupted = threads = RowThreads(calls)
        results = threads.run(lambda row: self.envs[row].close())
        self._interrupted = None
        return results

    def _observed(self) -> Any:
        self._observations = concatenate(self.single_observation_space, self._env_obs, self._observations)
        return deepcopy(self._observations) if self.copy else self._observations

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_interrupted": None}


class _Moved(NamedTuple):
    """The result of one row's step."""

    observation: Any
    reward: Any
    terminated: bool
    truncated: bool
    infos: list[dict[str, Any]]


def _step_row(env: gym.Env[Any, Any], action: Any, is_over: bool, mode: AutoresetMode) -> _Moved:
    """Step or reset one row, as its autoreset mode wants it."""
    if is_over and mode is AutoresetMode.NEXT_STEP:
        observation, info = env.reset()
        return _Moved(observation, 0.0, False, False, [info])
    observation, reward, terminated, truncated, info = env.step(action)
    infos = [info]
    if mode is AutoresetMode.SAME_STEP and (terminated or truncated):
        infos = [{"final_obs": observation, "final_info": info}]
        observation, info = env.reset()
        infos.append(info)
    return _Moved(observation, cast("Any", reward), terminated, truncated, infos)


class AsyncVector(_Checked, AsyncVectorEnv):
    """Environments stepped each in a process of its own."""

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Let all rows start episodes, or those of ``options["reset_mask"]``.

        ``options["rows"]`` is a list of what each row is given beside the other options.
        """
        self._check_alive()
        call = self._read_reset(seed, options)
        with self._moving():
            if isinstance(call.options, list):
                self._reset_apart(call)
            else:
                super().reset_async(**_together(call))

    def _reset_apart(self, call: ResetCall) -> None:
        """Let each row reset with options of its own."""
        self._assert_is_running()
        if self._state is not AsyncState.DEFAULT:
            waiting = self._state.value
            raise AlreadyPendingCallError(f"{self.name}: reset_async() while {waiting} is under way", waiting)
        for row, pipe in enumerate(self.parent_pipes):
            resets = call.mask is None or call.mask[row]
            pipe.send(("reset", call.of_row(row)) if resets else ("reset-noop", None))
        self._state = AsyncState.WAITING_RESET

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """What the resets gave."""
        with self._moving():
            result = super().reset_wait(timeout)
        self._reset_done()
        return result

    def step_async(self, actions: Any) -> None:
        """Let every row act."""
        self._check_alive()
        actions = self._step_argument(actions)
        with self._moving():
            super().step_async(actions)

    def step_wait(self, timeout: float | None = None) -> tuple[Any, Any, Bools, Bools, dict[str, Any]]:
        """What the actions led to."""
        with self._moving():
            result = super().step_wait(timeout)
        self._step_done(result[2], result[3])
        return self._in_groups(result)

    @contextmanager
    def _moving(self) -> Generator[None]:
        try:
            with super()._moving():
                yield
        except (EOFError, ConnectionError) as error:
            raise NotAvailable(f"{self.name}: {self._told_of_the_dead()}; {_AGAIN}") from error

    def _told_of_the_dead(self) -> str:
        for process in self.processes:
            process.join(_LAST_BREATH)
        dead = {row: one.exitcode for row, one in enumerate(self.processes) if one.exitcode is not None}
        return f"the processes of rows {list(dead)} died with exit codes {list(dead.values())}"

    def _check_alive(self) -> None:
        if self.closed:
            raise NotAvailable(f"{self.name}: this vector is closed; make another")
        pipes: list[Any] = self.parent_pipes
        gone = [row for row, pipe in enumerate(pipes) if pipe is None]
        if gone:
            what = f"the processes of rows {gone} ended with an error of their environments"
            raise NotAvailable(
                f"{self.name}: {what}; {_AGAIN}, with on_fault='truncate' if it is to survive them"
            )
        if self._cut_short:
            raise NotAvailable(f"{self.name}: {self._cut_short} came while its processes moved; {_AGAIN}")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End the processes, without waiting for what was cut short."""
        if self._cut_short:
            self._state, terminate = AsyncState.DEFAULT, True
        super().close_extras(timeout, terminate)


def _work(row: int, make: Callable[[], gym.Env[Any, Any]], *rest: Any, **options: Any) -> None:
    """Gymnasium's worker; why its environment cannot be made is raised where the vector is made."""
    try:
        env = make()
    except Exception as error:  # noqa: BLE001 - a foreign environment may raise anything
        pipe, other_end, _, errors, *_ = rest
        other_end.close()
        why = f"the environment of row {row} cannot be made in a process of its own: {error}"
        errors.put((row, NotAvailable, why, traceback.format_exc()))
        pipe.recv()
        pipe.send((None, False))
        return
    _async_worker(row, lambda: env, *rest, **options)


def _together(call: ResetCall) -> dict[str, Any]:
    """The arguments of Gymnasium's reset, whose rows all have the same options."""
    mask = {} if call.mask is None else {"reset_mask": call.mask.copy()}
    assert not isinstance(call.options, list)
    return {"seed": call.seeds, "options": {**call.options, **mask} if call.options is not None else None}
