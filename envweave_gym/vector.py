"""A base for environments whose vector form is NumPy arrays rather than a list of environments.

A subclass says how rows begin, how all rows advance and what they observe; this class does the rest once:
seeds, the three autoreset modes, step limits, checks of actions, and infos whose streams are built only when
somebody looks at one. The rows behave as the single environments do under ``SyncVectorEnv``, seed for seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envweave_gym.faults import InvalidAction, InvalidArgument, ResetNeeded
from envweave_gym.seeding import checked_seed, draw_seeds, fresh_seed
from envweave_gym.stream import (
    AGENT,
    Event,
    EventKind,
    LazyStreams,
    Request,
    RequestKind,
    Stream,
    jsonable,
    number,
)

Bools = NDArray[np.bool_]
_ALL_64 = (1 << 64) - 1


class NativeVectorEnv(VectorEnv[Any, Any, Any]):
    """``num_envs`` environments with a ``Discrete`` action space as rows of arrays.

    Subclasses call ``super().__init__`` and define :meth:`begin`, :meth:`advance`, :meth:`observe` and, where a
    reset has something to tell, :meth:`opening`.
    """

    def __init__(
        self,
        single_observation_space: Space[Any],
        single_action_space: Discrete,
        *,
        num_envs: int,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_steps: int | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = single_observation_space
        self.single_action_space = single_action_space
        self.observation_space = batch_space(single_observation_space, num_envs)
        self.action_space = batch_space(single_action_space, num_envs)
        self.render_mode = None
        self._max_steps = np.iinfo(np.int64).max if max_steps is None else max_steps
        self._bases = np.array([fresh_seed() for _ in range(num_envs)], np.uint64)
        self._counts = np.zeros(num_envs, np.int64)
        self._seeds = self._bases
        self._steps = np.zeros(num_envs, np.int64)
        self._episodes = np.full(num_envs, -1, np.int64)
        self._seq = np.zeros(num_envs, np.int64)
        self._over: Bools = np.zeros(num_envs, np.bool_)
        self._started = False
        self._everyone: Bools = np.ones(num_envs, np.bool_)
        self._everyone.flags.writeable = False
        self._nobody: Bools = ~self._everyone

    # What a subclass says

    def begin(self, rows: NDArray[np.intp], seeds: NDArray[np.uint64]) -> None:
        """Start a new episode in ``rows`` with these seeds."""
        raise NotImplementedError

    def advance(self, actions: NDArray[np.int64], steps: NDArray[np.int64]) -> tuple[NDArray[np.float64], Bools]:
        """Act in all rows at once; fresh arrays of rewards and terminations. ``steps`` counts the steps before.

        Rows that are about to be reset take part; what comes of them is thrown away.
        """
        raise NotImplementedError

    def observe(self) -> NDArray[Any]:
        """The observations of all rows, in a fresh array."""
        raise NotImplementedError

    def opening(self, row: int, seed: int) -> tuple[Event, ...]:
        """The events an episode with this seed opens with; as many for every seed (see ``opening_events``)."""
        return ()

    opening_events = 0
    """How many events :meth:`opening` tells."""

    # What users call

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes in all rows, or in those of ``options["reset_mask"]``."""
        rest = dict(options or {})
        mask = self._checked_mask(rest.pop("reset_mask", None))
        rows = np.flatnonzero(mask)
        self._take_seeds(rows, self._seed_list(seed))
        self._begin(rows)
        self._over = self._over & ~mask
        self._started = True
        told = _Resets(self, mask.copy(), jsonable(rest)).stream
        streams = LazyStreams(told, mask.copy())
        seq = np.where(mask, self._seq, 0)
        infos = {"stream": streams, "_stream": mask, "seq": seq, "_seq": mask.copy()}
        return self.observe(), infos

    def step(self, actions: Any) -> tuple[Any, NDArray[np.float64], Bools, Bools, dict[str, Any]]:
        """Act in every row."""
        chosen = self._checked_actions(actions)
        resetting = self._rows_to_reset()
        rewards, terminated = self.advance(chosen, self._steps)
        self._steps += 1
        truncated = self._steps >= self._max_steps
        if resetting is not None:
            rewards[resetting] = 0.0
            terminated[resetting] = False
            truncated[resetting] = False
        over = terminated | truncated
        self._seq = self._seq + 1
        self._seq += over
        self._seq += rewards != 0
        if resetting is not None:
            self._autoreset(resetting)
        self._over = over
        moment = _Steps(self, chosen, rewards, terminated, truncated, resetting)
        streams = LazyStreams(moment.stream, self._nobody if resetting is None else resetting)
        infos: dict[str, Any] = {"stream": streams, "_stream": self._everyone, "seq": self._seq, "_seq": self._everyone}
        if self.autoreset_mode is AutoresetMode.SAME_STEP and over.any():
            return self._same_step(rewards, terminated, truncated, infos)
        return self.observe(), rewards, terminated, truncated, infos

    def state(self) -> tuple[dict[str, Any], ...]:
        """The metadata of every row's episode."""
        pairs = zip(self._episodes.tolist(), self._steps.tolist(), strict=True)
        return tuple({"episode": episode, "step_count": steps} for episode, steps in pairs)

    # Inside

    def _rows_to_reset(self) -> Bools | None:
        """The rows whose step is a reset; in the other modes a row that is over must not be stepped."""
        if not self._over.any():
            if not self._started:
                raise ResetNeeded(f"{self._name}: step() was called before reset(); call reset() first")
            return None
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            return self._over
        rows = np.flatnonzero(self._over)[:5].tolist()
        raise ResetNeeded(
            f"{self._name}: step() was called after the episodes of rows {rows} ended; "
            "call reset(options={'reset_mask': …}) for them"
        )

    def _autoreset(self, mask: Bools) -> None:
        rows = np.flatnonzero(mask)
        self._take_seeds(rows, None)
        self._begin(rows)

    def _same_step(
        self, rewards: NDArray[np.float64], terminated: Bools, truncated: Bools, infos: dict[str, Any]
    ) -> tuple[Any, NDArray[np.float64], Bools, Bools, dict[str, Any]]:
        """Reset the rows that just ended, with their last observations and streams kept as final."""
        over, last = self._over, self.observe()
        final_obs = np.full(self.num_envs, None, dtype=object)
        for row in np.flatnonzero(over).tolist():
            final_obs[row] = last[row]
        ended = infos["stream"]
        final_seq = np.where(over, self._seq, 0)
        self._seq = self._seq.copy()
        self._autoreset(over)
        self._over = self._nobody.copy()
        opened = _Resets(self, over.copy(), {}).stream
        streams = LazyStreams(lambda row: opened(row) if over[row] else ended[row], self._nobody)
        final = LazyStreams(lambda row: ended[row] if over[row] else None, self._nobody)
        infos.update(stream=streams, seq=self._seq)
        infos.update(final_obs=final_obs, _final_obs=over.copy(), _final_info=over.copy())
        infos["final_info"] = {"stream": final, "_stream": over.copy(), "seq": final_seq, "_seq": over.copy()}
        return self.observe(), rewards, terminated, truncated, infos

    def _begin(self, rows: NDArray[np.intp]) -> None:
        self._steps[rows] = 0
        self._episodes[rows] += 1
        self._seq[rows] = self.opening_events
        self.begin(rows, self._seeds[rows])

    def _take_seeds(self, rows: NDArray[np.intp], given: list[int | None] | None) -> None:
        """Give ``rows`` their seeds: the given ones, or drawn from the last given of each row."""
        self._counts[rows] += 1
        seeds = self._seeds.copy()
        seeds[rows] = draw_seeds(self._bases[rows], self._counts[rows])
        for row in [] if given is None else rows.tolist():
            seed = given[row]
            if seed is not None:
                self._bases[row] = seeds[row] = seed & _ALL_64
                self._counts[row] = 0
        self._seeds = seeds

    def _seed_list(self, seed: Any) -> list[int | None] | None:
        if seed is None:
            return None
        if isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str):
            if len(seed) != self.num_envs:
                raise InvalidArgument(f"{self._name}: {len(seed)} seeds were given for {self.num_envs} environments")
            return [None if one is None else checked_seed(one, self._name) for one in seed]
        first = checked_seed(seed, self._name)
        return [first + row for row in range(self.num_envs)]

    def _checked_mask(self, mask: Any) -> Bools:
        if mask is None:
            return np.ones(self.num_envs, np.bool_)
        if not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)):
            raise InvalidArgument(f"{self._name}: options['reset_mask'] must be a bool array of shape ({self.num_envs},)")
        if not mask.any():
            raise InvalidArgument(f"{self._name}: options['reset_mask'] names no row to reset; set one to True")
        return mask.copy()

    def _checked_actions(self, actions: Any) -> NDArray[np.int64]:
        given = np.asarray(actions)
        if given.shape != (self.num_envs,) or given.dtype.kind not in "iu":
            raise InvalidAction(
                f"{self._name}: actions of shape {given.shape} and type {given.dtype} are not in {self.action_space}"
            )
        space = self.single_action_space
        offset = (given - space.start).astype(np.uint64) if space.start else given.astype(np.uint64)
        if offset.max() >= space.n:
            row = int(np.flatnonzero(offset >= np.uint64(space.n))[0])
            raise InvalidAction(f"{self._name}: action {given[row]} of row {row} is not in {space}")
        return offset.view(np.int64)

    @property
    def _name(self) -> str:
        return self.spec.id if self.spec is not None else type(self).__name__


class _Resets:
    """The streams of a reset, built row by row on demand."""

    def __init__(self, env: NativeVectorEnv, mask: Bools, options: dict[str, Any]) -> None:
        self._opening, self._seeds = env.opening, env._seeds
        self._mask, self._options = mask, options

    def stream(self, row: int) -> Stream | None:
        if not self._mask[row]:
            return None
        seed = int(self._seeds[row])
        start: dict[str, Any] = {"seed": seed, "options": self._options} if self._options else {"seed": seed}
        events = (Event(0, EventKind.EPISODE_START, None, None, start), *number(self._opening(row, seed), 1))
        return Stream((Request(len(events) - 1, RequestKind.ACT, AGENT, 0),), events)


class _Steps:
    """The streams of a step, built row by row on demand from what the arrays held then."""

    def __init__(
        self,
        env: NativeVectorEnv,
        actions: NDArray[np.int64],
        rewards: NDArray[np.float64],
        terminated: Bools,
        truncated: Bools,
        resetting: Bools | None,
    ) -> None:
        self._actions, self._start = actions, int(env.single_action_space.start)
        self._rewards, self._terminated, self._truncated = rewards.copy(), terminated.copy(), truncated.copy()
        self._seq, self._turns = env._seq, env._steps.copy()
        self._resets = None if resetting is None else _Resets(env, resetting, {}).stream
        self._resetting = resetting

    def stream(self, row: int) -> Stream:
        if self._resets is not None and self._resetting is not None and self._resetting[row]:
            return self._resets(row) or Stream()
        seq, turn = int(self._seq[row]), int(self._turns[row])
        ends = {"terminated": bool(self._terminated[row]), "truncated": bool(self._truncated[row])}
        over, reward = any(ends.values()), float(self._rewards[row])
        first = seq - over - (reward != 0)
        events = (Event(first, EventKind.ACT, AGENT, None, {"action": int(self._actions[row]) + self._start}),)
        if reward:
            events += (Event(first + 1, EventKind.REWARD, AGENT, None, {"reward": reward}),)
        if over:
            end = Event(seq, EventKind.EPISODE_END, None, None, ends)
            return Stream((Request(seq, RequestKind.RESET, None, turn),), (*events, end))
        return Stream((Request(seq, RequestKind.ACT, AGENT, turn),), events)
