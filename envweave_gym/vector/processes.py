"""Gymnasium's ``AsyncVectorEnv`` with our checks: each environment steps in a process of its own."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import gymnasium as gym
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState, _async_worker

from envweave_gym.core.faults import NotAvailable
from envweave_gym.episode.columns import RecordColumns
from envweave_gym.vector.base import CheckedVector, Results

_AGAIN = "close() this vector and make another"
_EXIT_WAIT_S = 0.2
"""Time to wait for a process whose pipe has closed, so that its exit code is known."""


class AsyncVector(CheckedVector, AsyncVectorEnv):
    """Vector of environments, each in a process of its own."""

    @wraps(AsyncVectorEnv.__init__)
    def __init__(self, env_fns: list[Callable[[], gym.Env[Any, Any]]], **options: Any) -> None:
        """``options`` are those of ``gymnasium.vector.AsyncVectorEnv``."""
        mode = AutoresetMode(options.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._record = RecordColumns(len(env_fns), mode)  # close() needs it if an environment cannot be made
        super().__init__(env_fns, worker=_work, **options)
        self._resetting = self._record.everyone

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Send resets to all rows, or to the rows that ``options["reset_mask"]`` selects.

        ``options["rows"]`` is a list with further options for each row.
        """
        self._check_alive()
        call = self._read_reset(seed, options)
        self._assert_is_running()
        if self._state is not AsyncState.DEFAULT:
            waiting = self._state.value
            raise AlreadyPendingCallError(f"{self.name}: reset_async() while {waiting} is under way", waiting)
        self._resetting = self._record.everyone if call.mask is None else call.mask
        with self._moving():
            for row, pipe in enumerate(self.parent_pipes):
                pipe.send(("reset", call.of_row(row)) if self._resetting[row] else ("reset-noop", None))
        self._state = AsyncState.WAITING_RESET

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for the resets, and return their results."""
        with self._moving():
            result = super().reset_wait(timeout)
        self._record.reset(self._resetting)
        return result

    def step_async(self, actions: Any) -> None:
        """Send an action to every row."""
        self._check_alive()
        actions = self._checked_actions(actions)
        with self._moving():
            super().step_async(actions)

    def step_wait(self, timeout: float | None = None) -> Results:
        """Wait for the steps, and return their results."""
        with self._moving():
            result = super().step_wait(timeout)
        self._record.end(result[2] | result[3])
        return self._in_groups(result)

    @contextmanager
    def _moving(self) -> Generator[None]:
        try:
            with super()._moving():
                yield
        except (EOFError, ConnectionError) as error:
            raise NotAvailable(f"{self.name}: {self._deaths()}; {_AGAIN}") from error

    def _deaths(self) -> str:
        for process in self.processes:
            process.join(_EXIT_WAIT_S)
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
        stopped = self._record.cut_short
        if stopped:
            raise NotAvailable(f"{self.name}: {stopped} came while its processes moved; {_AGAIN}")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End the processes, without waiting for a call that was interrupted."""
        if self._record.cut_short:
            self._state, terminate = AsyncState.DEFAULT, True
        super().close_extras(timeout, terminate)


def _work(row: int, make: Callable[[], gym.Env[Any, Any]], *rest: Any, **options: Any) -> None:
    """Run Gymnasium's worker; report the error of a constructor that fails to the process that makes the vector."""
    try:
        env = make()
    except Exception as error:  # noqa: BLE001 - a foreign environment may raise anything
        pipe, other_end, _, errors, *_ = rest
        other_end.close()
        why = f"the environment of row {row} cannot be made in a process of its own: {error}"
        errors.put((row, NotAvailable, why, traceback.format_exc()))
        # Gymnasium's constructor waits for replies to its first command, and reads the queue if one is False.
        pipe.recv()
        pipe.send((None, False))
        return
    pipe, parent_pipe, shared_memory, errors, mode, *more = rest
    if mode is AutoresetMode.NEXT_STEP and not shared_memory:
        # Without shared memory Gymnasium's worker forgets, at a reset, that no reset is due: the next step would reset
        # again, and its action would be lost.
        env, mode = _NextStepAutoreset(env), AutoresetMode.DISABLED
    _async_worker(row, lambda: env, pipe, parent_pipe, shared_memory, errors, mode, *more, **options)


class _NextStepAutoreset(gym.Wrapper[Any, Any, Any, Any]):
    """Resets the environment in the step after an episode's end, unless it was reset before."""

    _ended = False

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self._ended = False
        return self.env.reset(**options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._ended:
            observation, info = self.reset()
            return observation, 0, False, False, info
        result = self.env.step(action)
        self._ended = bool(result[2] or result[3])
        return result
