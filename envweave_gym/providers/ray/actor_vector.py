"""``RayVectorEnv``: rows on Ray actors, whose sub-batches step together or independently."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector.utils import batch_space, iterate

from envweave_gym.core.actions import REFUSED, admission
from envweave_gym.core.faults import InvalidAction, InvalidArgument, ResetNeeded, shown
from envweave_gym.core.spaces import placeholder
from envweave_gym.episode.columns import Bools, Rows
from envweave_gym.providers.ray.pipelined import PipelinedShard, first_answered
from envweave_gym.remote.shard_batches import batch_of, part_of
from envweave_gym.remote.shard_calls import RowsReset, ShardCalls, ShardResult
from envweave_gym.remote.vector import RemoteVectorEnv
from envweave_gym.vector.base import NOT_A_BATCH, Results
from envweave_gym.vector.native import checked_choices
from envweave_gym.wire.messages import Step
from envweave_gym.wire.values import pack


class RayVectorEnv(RemoteVectorEnv):
    """Steps environments in actors as one vector, or each sub-batch when it is ready.

    - :meth:`reset` and :meth:`step` are those of every vector.
    - :meth:`send` begins steps of some sub-batches, and :meth:`recv` gives the results of those that are
      ready first, as EnvPool does: ``info["env_id"]`` tells which rows they are.
    - A sub-batch is the rows of one session. ``sub_batches=2`` gives every actor two, each in a thread.
    - A large reply travels through shared memory: Ray's, or on the same machine that of the socket.
    """

    _shard_type = PipelinedShard
    _shards: list[PipelinedShard]

    def __init__(
        self, env_id: str, urls: str | Sequence[str], *, sub_batches: int = 1, **arguments: Any
    ) -> None:
        if type(sub_batches) is not int or sub_batches < 1:
            raise InvalidArgument(f"{env_id}: sub_batches={shown(sub_batches)} is not an int >= 1")
        super().__init__(env_id, ([urls] if isinstance(urls, str) else list(urls)) * sub_batches, **arguments)

    # As every vector

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes in all rows; first wait for steps that :meth:`send` has begun, and drop their results."""
        if self._under_way:
            self.recv()
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> Results:
        """Step every row; raise ``ResetNeeded`` if a step begun by :meth:`send` was not received yet."""
        if self._under_way:
            self._refuse(
                f"steps of {len(self._under_way)} sub-batches are under way; call recv() before step()"
            )
        return super().step(actions)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the sessions; results that were not received yet are dropped."""
        for shard in self._shards:
            shard.acts = None
        super().close_extras(**kwargs)

    # Some rows at a time

    def send(self, actions: Any, env_id: Any = None) -> None:
        """Begin a step in the sub-batches of the rows ``env_id``, by default in all.

        Actions are in the order of ``env_id``, which must name whole sub-batches, as :meth:`recv` returned
        them.
        """
        rows = np.arange(self.num_envs) if env_id is None else self._checked_rows(env_id)
        shards = self._shards_of(rows)
        self._record.check_step(self.name, rows)
        acts = self._acts(actions, rows)
        for shard in shards:
            packed = pack(part_of(self.single_action_space, acts, shard.rows))
            shard.begin(acts, Step(0, packed))

    def recv(self, min_ready: int | None = None) -> Results:
        """Wait for steps begun by :meth:`send`; return results of at least ``min_ready`` rows, by default of all.

        ``info["env_id"]`` are the rows, in the order of the results.
        """
        waiting = self._under_way
        if not waiting:
            self._refuse("recv() was called with no step under way; call send() first")
        most = sum(shard.size for shard in waiting)
        if min_ready is not None and (type(min_ready) is not int or min_ready < 1):
            raise InvalidArgument(f"{self.name}: min_ready={shown(min_ready)} is no number of rows from 1 on")
        answered = first_answered(waiting, most if min_ready is None else min(min_ready, most))
        try:
            return self._received(answered)
        except BaseException as error:
            self._stopped(error)
            raise

    def _received(self, shards: Sequence[PipelinedShard]) -> Results:
        results: list[ShardResult] = []
        for shard in shards:
            acts, shard.acts = shard.acts, None
            results += self._calls_of(ShardCalls, [shard]).step(acts)
        rows = np.concatenate([np.array(one.shard.numbers) for one in _owned(results)])
        observations, rewards, terminated, truncated, infos = self._stepped(results, rows)
        return observations, rewards, terminated, truncated, {**infos, "env_id": rows}

    @property
    def _under_way(self) -> list[PipelinedShard]:
        """Sub-batches whose step was sent and not received."""
        return [shard for shard in self._shards if shard.acts is not None]

    def _refuse(self, why: str) -> NoReturn:
        raise ResetNeeded(f"{self.name}: {why}")

    def _checked_rows(self, env_id: Any) -> Rows:
        rows = np.asarray(env_id)
        right = rows.ndim == 1 and rows.size and rows.dtype.kind in "iu"
        if not right or rows.min() < 0 or rows.max() >= self.num_envs or len(np.unique(rows)) < len(rows):
            raise InvalidArgument(
                f"{self.name}: env_id={shown(env_id)} are no rows; give those that recv() returned"
            )
        return rows.astype(np.intp)

    def _shards_of(self, rows: Rows) -> list[PipelinedShard]:
        """Return the sub-batches of these rows; raise ``InvalidArgument`` if they name a part of one only."""
        named = set(rows.tolist())
        shards = [shard for shard in self._shards if not named.isdisjoint(shard.numbers)]
        for shard in shards:
            which = f"the sub-batch of rows {shard.numbers.start} to {shard.numbers.stop - 1}"
            if not named.issuperset(shard.numbers):
                raise InvalidArgument(
                    f"{self.name}: env_id= names a part of {which}; give all or none of them"
                )
            if shard.acts is not None:
                self._refuse(f"{which} is under way; call recv() before it is sent another step")
        return shards

    def _acts(self, actions: Any, rows: Rows) -> Any:
        """Check the actions of ``rows``, and return a batch for all rows, with placeholders in the others."""
        single, everyone, count = self.single_action_space, self.action_space, len(rows)
        some = everyone if count == self.num_envs else batch_space(single, count)
        if self._choices is not None:
            given = checked_choices(self.name, actions, count, self._choices, some) + self._choices.start
            acts = np.full(self.num_envs, self._choices.start, self._narrow)
            acts[rows] = given
            return acts
        try:
            given = list(iterate(some, actions))
        except NOT_A_BATCH:
            given = []
        if len(given) != count:
            raise InvalidAction(f"{self.name}: actions {shown(actions)} are not in {some}")
        chosen: list[Any] = [placeholder(single)] * self.num_envs
        if self._admit is None:
            self._admit = admission(single)
        for row, action in zip(rows.tolist(), given, strict=True):
            if self._admit(action) is REFUSED:
                raise InvalidAction(f"{self.name}: action {shown(action)} of row {row} is not in {single}")
            chosen[row] = action
        return batch_of(single, chosen)

    # The parts of a call

    @cached_property
    def _calls(self) -> ShardCalls:
        return self._calls_of(_OwnedCalls, self._shards)


class _OwnedCalls(ShardCalls):
    """Calls to all sub-batches, whose results are writable, as users own them."""

    def step(self, actions: Any, resting: Bools | None = None) -> list[ShardResult]:
        return _owned(super().step(actions, resting))

    def reset(self, reset: RowsReset) -> list[ShardResult]:
        return _owned(super().reset(reset))


def _owned(results: list[ShardResult]) -> list[ShardResult]:
    """Make the arrays of a single result writable, by a copy; several results are copied when they are joined."""
    if len(results) == 1:
        for name in ("observation", "infos", "reward", "terminated", "truncated"):
            setattr(results[0], name, _writable(getattr(results[0], name)))
    return results


def _writable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value if value.flags.writeable else value.copy()
    if isinstance(value, dict):
        return type(value)({key: _writable(value[key]) for key in value})
    return tuple(map(_writable, value)) if isinstance(value, tuple) else value
