"""Rows of a remote vector on each server (shards): resets, steps, and the loss of a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from envweave_gym.core.faults import Fault, FaultCount
from envweave_gym.core.spaces import placeholder
from envweave_gym.episode.columns import Bools, Options, RecordColumns, options_of
from envweave_gym.episode.record import EpisodeRecord
from envweave_gym.episode.vector_infos import VectorInfos, infos_of_rows
from envweave_gym.remote.served_environment import FAULTS, ServedEnvironment
from envweave_gym.remote.session import call_all
from envweave_gym.remote.shard_batches import batch_of, copied, part_of, rows_of
from envweave_gym.wire.messages import Reply, Reset, Step
from envweave_gym.wire.packed_streams import take_results
from envweave_gym.wire.values import pack, pack_array


class Shard(ServedEnvironment):
    """The rows of a vector that are on one server; when the session is lost, the episodes of all these rows end."""

    live = False
    """Whether every row was reset in the current session and no episode was lost since."""
    broken: Fault | None = None
    """A loss that the next step must report, or ``None``."""
    shaky = False
    """Whether an episode was lost, and no episode has ended without a fault since."""
    resumed = False
    """Whether all rows were reset in a new session although the caller reset only some."""
    last: Any = None
    """Copy of the last observations, which no reply or caller shares."""

    def __init__(self, rows: slice, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rows, self.size = rows, rows.stop - rows.start
        self.numbers = range(rows.start, rows.stop)
        self.faults = FaultCount(self.name)

    def lost(self, error: Exception) -> Fault:
        """Mark all rows as lost, abandon the session, and return the fault, or raise ``error``."""
        self.live = False
        return super().lost(error)

    def retry(self, reset: ShardReset, error: Exception, started: float) -> Reply | Fault:
        """Reset again in a new session if the lost reset was of all rows and time is left; else return the fault.

        ``started`` is the time at which the reset began.
        """
        if reset.is_whole and time.monotonic() - started < self._reset_deadline:
            self._abandon(error)
            return self.reset(reset.seeding, reset.options, started=started)
        return self.lost(error)

    @property
    def reset_deadline(self) -> float:
        """Time limit of a reset in seconds."""
        return self._reset_deadline

    def _fault_of(self, error: Exception) -> Fault:
        self.shaky = True
        return self.faults.add(super()._fault_of(error))

    def _close_session(self) -> None:
        self.live, self.broken = False, None
        super()._close_session()


class ShardReset(NamedTuple):
    """One shard's part of a reset."""

    shard: Shard
    seeding: Any
    """Packed seeds: the argument of the server's ``environments.vector_resets.reset_rows``."""
    options: dict[str, Any] | None
    is_whole: bool
    """Whether every row of the shard is reset, so that a new session can do the reset too."""


class ShardResult(msgspec.Struct):
    """Result of a call for the rows of one shard."""

    shard: Shard
    observation: Any
    infos: dict[str, Any]
    reward: Any
    terminated: Any
    truncated: Any
    lost: dict[int, dict[str, Any]] = {}
    """Info of each lost row, by row; ``infos`` contains these too."""

    @classmethod
    def without_step(cls, shard: Shard, observation: Any, infos: dict[str, Any]) -> ShardResult:
        """Return the result of a call that stepped no row: rewards are 0 and no episode ends."""
        terminated, truncated = np.zeros((2, shard.size), np.bool_)
        return cls(shard, observation, infos, np.zeros(shard.size), terminated, truncated)


class RowsReset(NamedTuple):
    """Reset of some rows of a vector, with given or drawn seeds."""

    rows: Bools
    states: NDArray[np.uint64]
    """State of each row's seed generator before this reset; a server continues drawing from it."""
    seeds: NDArray[np.uint64]
    given: Sequence[int | None] | None = None
    options: Options = None

    @classmethod
    def by_hand(
        cls, record: RecordColumns, rows: Bools, given: Sequence[int | None] | None, options: Options
    ) -> RowsReset:
        """Return a reset requested by the caller of the vector; draw the seeds that are not given.

        ``rows`` is a mask of the rows to reset, and ``given`` has a seed or ``None`` for each row.
        """
        states, seeds = record.draws.states.copy(), np.zeros(len(rows), np.uint64)
        seeds[rows] = record.draws.next(rows.nonzero()[0], given)
        return cls(rows, states, seeds, given, options)

    @classmethod
    def of_lost(cls, record: RecordColumns, rows: Bools) -> RowsReset:
        """Return a reset of lost rows by autoreset.

        It reads the rows' next seeds without drawing them: the step in progress draws them at its end.
        """
        return cls(rows, record.draws.states.copy(), record.draws.upcoming())


class ShardCalls:
    """Executor of a vector's resets and steps on all shards in parallel; it continues if some are lost."""

    goes_on = False
    """Whether rows that were seeded before are reset without a seed, so that their random generators continue."""

    def __init__(
        self,
        shards: Sequence[Shard],
        record: RecordColumns,
        single_observation_space: Space[Any],
        single_action_space: Space[Any],
        rows_of_actions: Callable[[Any], list[Any]],
    ) -> None:
        """``rows_of_actions`` splits a batch into the action of each row, and raises if one is not in the space."""
        self._shards, self._record, self._rows_of_actions = shards, record, rows_of_actions
        self._observation_space, self._action_space = single_observation_space, single_action_space

    def step(self, actions: Any, resting: Bools | None = None) -> list[ShardResult]:
        """Step every shard in parallel; a lost shard reports its loss, or is reset if the loss was reported before.

        Shards whose rows are all ``resting`` are skipped: the caller resets them next.
        """
        shards = self._shards
        left = [] if resting is None else [one for one in shards if resting[one.rows].all()]
        live = [one for one in shards if one.live and one not in left]
        messages: list[Step] = []
        for shard in live:
            part = actions if len(shards) == 1 else part_of(self._action_space, actions, shard.rows)
            plain = type(part) is np.ndarray and not part.dtype.hasobject
            messages.append(Step(0, pack_array(part) if plain else pack(part)))
        replies = call_all([one.current or one.session() for one in live], messages)
        # Before anything is recorded: a refused action has moved no row of its shard.
        _raise_refusal(replies)
        results = [ShardResult.without_step(one, copied(one.last), {}) for one in left]
        for shard, reply in zip(live, replies, strict=True):
            if isinstance(reply, Exception):
                shard.broken = shard.lost(reply)
                results.append(self._lost(shard, actions, is_ignored=False))
            else:
                results.append(_stepped(shard, reply))
        if len(results) == len(shards) == 1:
            return results
        done = [one.shard for one in results]
        return in_order(results + self._step_without([one for one in shards if one not in done], actions))

    def _step_without(self, shards: Sequence[Shard], actions: Any) -> list[ShardResult]:
        """Report the loss of shards without a session; reset shards whose loss was reported before."""
        results = [self._lost(one, actions, is_ignored=True) for one in shards if one.broken]
        reported = [one.shard for one in results]
        return results + self._reset_lost([one for one in shards if one not in reported])

    def _lost(self, shard: Shard, actions: Any, *, is_ignored: bool) -> ShardResult:
        """End the episodes of a lost shard with its fault.

        ``is_ignored`` says that the loss was found before the step, so that ``actions`` had no effect. Rows whose
        episode was over, so that this step was to reset them, lose a new episode at its start.
        """
        fault, record = shard.broken, self._record
        assert fault is not None
        acted, shard.broken = self._rows_of_actions(actions), None
        seeds: list[Any] = [None] * len(acted) if self.goes_on else record.draws.upcoming().tolist()
        lost = {
            row: EpisodeRecord().lost_at_start(fault, seeds[row])
            if record.over[row]
            else record.lost_step(row, fault, acted[row], is_ignored=is_ignored)
            for row in shard.numbers
        }
        result = _lost_result(shard, lost)
        result.truncated[:] = True
        return result

    # Resets

    def reset(self, reset: RowsReset) -> list[ShardResult]:
        """Reset rows in parallel, and return the results of the shards with rows to reset."""
        results: list[ShardResult] = []
        resets: list[ShardReset] = []
        for shard in self._shards:
            part = reset.rows[shard.rows]
            if not part.any():
                continue
            if not part.all() and not shard.live:
                self._resume(shard, reset)
            if shard.broken and not part.all():
                results.append(self._lost_reset(shard, reset))
            else:
                resets.append(self._reset_of(shard, reset))
        replies = _replies_to(resets)
        pairs = zip(resets, replies, strict=True)
        return in_order(results + [self._began(one.shard, reply, reset) for one, reply in pairs])

    def _reset_lost(self, shards: Sequence[Shard]) -> list[ShardResult]:
        """Reset all rows of ``shards`` as autoreset would."""
        if not shards:
            return []
        rows = np.zeros_like(self._record.over)
        for shard in shards:
            rows[shard.rows] = True
        return self.reset(RowsReset.of_lost(self._record, rows))

    def _reset_of(self, shard: Shard, reset: RowsReset) -> ShardReset:
        part, given, options = reset.rows[shard.rows], reset.given, reset.options
        if isinstance(options, list):
            options = {"rows": options[shard.rows]}
        seeding = {
            "seed": None if given is None else list(given[shard.rows]),
            "draws": reset.states[shard.rows],
            "over": self._record.over[shard.rows],
            "goes_on": self.goes_on,
        }
        is_whole = bool(part.all())
        if not is_whole:
            options = {**(options or {}), "reset_mask": part}
        return ShardReset(shard, pack(seeding), options, is_whole)

    def _resume(self, shard: Shard, reset: RowsReset) -> None:
        """Open a session for a lost shard of which only some rows are to be reset.

        All rows are reset, because a vector's first reset must be of all rows. If no step has reported the loss
        yet, no session is opened, and the rows to reset report the loss, as the next step will for all rows.
        """
        if shard.broken:
            shard.faults.add(shard.broken)
            return
        everyone = RowsReset(np.ones_like(reset.rows), reset.states, reset.seeds)
        reply = _replies_to([self._reset_of(shard, everyone)])[0]
        if isinstance(reply, Fault):
            shard.broken = reply
        else:
            shard.live, shard.resumed = True, True

    def _began(self, shard: Shard, reply: Any, reset: RowsReset) -> ShardResult:
        if isinstance(reply, Fault):
            shard.broken = reply
            return self._lost_reset(shard, reset)
        observation = reply.observation
        if shard.resumed:
            shard.resumed = False
            new = rows_of(self._observation_space, observation, shard.size)
            observation = self._mixed(shard, reset, new)
        shard.live, shard.broken, shard.last = True, None, copied(observation)
        return ShardResult.without_step(shard, observation, reply.info)

    def _lost_reset(self, shard: Shard, reset: RowsReset) -> ShardResult:
        """Record that a reset was lost, and return placeholders; the next step ends all episodes of the shard."""
        fault = shard.broken
        assert fault is not None
        shard.live = False
        shard.last = self._mixed(shard, reset, [placeholder(self._observation_space)] * shard.size)
        lost = {
            row: EpisodeRecord().lost_reset(fault, int(reset.seeds[row]), options_of(reset.options, row))
            for row in shard.numbers
            if reset.rows[row]
        }
        return _lost_result(shard, lost)

    def _mixed(self, shard: Shard, reset: RowsReset, new: Sequence[Any]) -> Any:
        """Return the shard's last observations, with those of ``new`` in the rows that ``reset`` selects."""
        space = self._observation_space
        old = new if shard.last is None else rows_of(space, shard.last, shard.size)
        rows = zip(reset.rows[shard.rows], new, old, strict=True)
        return batch_of(space, [one if is_reset else other for is_reset, one, other in rows])

    def reset_lost(self, results: Sequence[ShardResult]) -> None:
        """Reset the rows that were lost in this step, as same-step autoreset does.

        Their observations and infos become ``final_obs`` and ``final_info``.
        """
        lost = [one for one in results if one.lost]
        for one, begun in zip(lost, self._reset_lost([one.shard for one in lost]), strict=True):
            last = rows_of(self._observation_space, one.observation, one.shard.size)
            ended = zip(last, one.lost.values(), strict=True)
            final = infos_of_rows([{"final_obs": seen, "final_info": info} for seen, info in ended])
            one.observation, one.infos = begun.observation, VectorInfos(begun.infos | final)


def _stepped(shard: Shard, reply: Any) -> ShardResult:
    take_results(reply)
    terminated, truncated = reply.terminated, reply.truncated
    if shard.shaky and "fault" not in reply.info and (terminated.any() or truncated.any()):
        shard.shaky = False
        shard.faults.clear()
    observation = reply.observation
    # The caller may write to the observation, and a loss must return it as it was.
    shard.last = observation.copy() if type(observation) is np.ndarray else copied(observation)
    return ShardResult(shard, observation, reply.info, reply.reward, terminated, truncated)


def _lost_result(shard: Shard, lost: dict[int, dict[str, Any]]) -> ShardResult:
    """Return the result of a shard whose rows were lost: the last observations, and the infos ``lost`` by row."""
    result = ShardResult.without_step(
        shard, copied(shard.last), infos_of_rows([lost.get(row) for row in shard.numbers])
    )
    result.lost = lost
    return result


def _replies_to(resets: Sequence[ShardReset]) -> list[Any]:
    """Reset shards in parallel; return each reply, or the :class:`Fault` of a failed reset."""
    started, sessions = time.monotonic(), [one.shard.fresh_session() for one in resets]
    give_up_s = max((one.shard.reset_deadline for one in resets), default=0.0)
    replies = call_all(sessions, [Reset(0, one.seeding, pack(one.options)) for one in resets], give_up_s)
    _raise_refusal(replies)
    return [
        one.shard.retry(one, reply, started) if isinstance(reply, Exception) else reply
        for one, reply in zip(resets, replies, strict=True)
    ]


def _raise_refusal(replies: Sequence[Any]) -> None:
    """Raise the first exception that is not a loss, such as ``InvalidAction``."""
    for reply in replies:
        if isinstance(reply, Exception) and not isinstance(reply, FAULTS):
            raise reply


def in_order(results: list[ShardResult]) -> list[ShardResult]:
    """Return the results in the order of their rows."""
    return sorted(results, key=lambda one: one.shard.rows.start)


def ends_of(results: Sequence[ShardResult]) -> list[NDArray[Any]]:
    """Return the rewards, terminations and truncations of all rows."""
    if len(results) == 1:
        return [results[0].reward, results[0].terminated, results[0].truncated]
    columns = zip(*[(one.reward, one.terminated, one.truncated) for one in results], strict=True)
    return [np.concatenate(one) for one in columns]
