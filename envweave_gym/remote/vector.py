"""``RemoteVectorEnv``: a ``gymnasium.vector.VectorEnv`` whose rows run on one or several servers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, Space
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

import envweave_gym.wire.packed_streams  # noqa: F401 # pyright: ignore[reportUnusedImport] - unpacks streams
from envweave_gym.core.arguments import autoreset_mode_of, check_num_envs, check_reproducible
from envweave_gym.core.array_conversion import adapt_converters
from envweave_gym.core.faults import HARMLESS, RESET_DEADLINE_S, InvalidArgument, shown
from envweave_gym.core.reply_parsing import read_action
from envweave_gym.core.spaces import placeholder
from envweave_gym.episode.columns import Bools, RecordColumns, Rows
from envweave_gym.remote.descriptions import create_message, describe, remote_name
from envweave_gym.remote.served_environment import CALL_DEADLINE, LOSSES, space_of
from envweave_gym.remote.session import RemoteSession
from envweave_gym.remote.shard_batches import copied, joined, merged, travels
from envweave_gym.remote.shard_calls import RowsReset, Shard, ShardCalls, ShardResult, ends_of, in_order
from envweave_gym.vector.base import CheckedVector, Results
from envweave_gym.vector.native import checked_choices
from envweave_gym.vector.reset_arguments import as_batch
from envweave_gym.vector.row_groups import groups_of
from envweave_gym.wire.messages import Create

_log = logging.getLogger(__name__)


class RemoteVectorEnv(CheckedVector):
    """Vector of environments on servers, which sends one frame to each server for a step.

    - Each of several servers has a part of the rows (a shard), and all step at the same time.
    - An invalid call is refused before any row has moved: by the server, or here if there are several.
    - When a server is lost, the episodes of its rows end with ``truncated``, reward 0, the last observation,
      and ``info["fault"]``. Rows on other servers continue. Lost rows are reset in another session, by
      autoreset or by the caller. ``on_fault="raise"`` raises instead.
    - This process draws the seeds of all rows, so that they do not depend on which servers were lost.
    - The first access to a space sends the first request, and the first reset opens sessions. Pickles and
      copies hold the addresses; a session belongs to the process that opened it.
    """

    _shard_type: type[Shard] = Shard

    def __init__(
        self,
        env_id: str,
        urls: str | Sequence[str],
        *,
        num_envs: int = 1,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        group: int | None = None,
        token: str | None = None,
        on_fault: str = "truncate",
        reset_deadline: float = RESET_DEADLINE_S,
        call_deadline: float = CALL_DEADLINE,
        reproducible: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """Prepare the client; no request is sent yet.

        ``kwargs`` go to the environments' constructor on the server. ``token`` is a reference to the access token:
        ``env:NAME`` or ``file:PATH``. ``group`` consecutive rows play the same episodes, also on different servers.
        ``call_deadline`` and ``reset_deadline`` are in seconds.

        ``on_fault="truncate"`` ends the episodes of lost rows with ``info["fault"]``; ``"raise"`` raises the error.

        A reset of a row without a seed gets one that this client draws. But if the rows can continue their random
        generators, the drawn seeds are sent only with the first reset of a session. ``reproducible=True`` sends
        seeds with every reset, so that each episode can be played again by itself; groups need it.
        """
        self._urls = [urls] if isinstance(urls, str) else list(urls)
        if not self._urls:
            raise InvalidArgument(f"{env_id}: there is no server in {shown(urls)}; give a URL, or several")
        self.name = remote_name(env_id, self._urls[0])
        check_num_envs(self.name, num_envs)
        self.num_envs, self._mode = num_envs, autoreset_mode_of(self.name, autoreset_mode)
        self.groups = groups_of(self.name, group, num_envs)
        self._reproducible = self._checked_reproducible(reproducible)
        self._env_id, self._token, self._call_deadline = env_id, token, call_deadline
        self._faults = {"on_fault": on_fault, "reset_deadline": reset_deadline}
        self._kwargs, self.render_mode = kwargs, kwargs.get("render_mode")
        self._shards = [self._shard(url, rows) for url, rows in _spread(self._urls, num_envs)]
        self._record = RecordColumns(num_envs, self._mode)

    def _checked_reproducible(self, given: bool | None) -> bool:
        wanted = self.groups is not None if given is None else given
        check_reproducible(self.name, wanted)
        if self.groups is not None and not wanted:
            needs = "needs seeds at every reset; leave reproducible=False out"
            raise InvalidArgument(f"{self.name}: group={self.groups.size} {needs}")
        return wanted

    def _shard(self, url: str, rows: slice) -> Shard:
        kwargs = self._row_arguments(rows.stop - rows.start)
        deadlines = {"call_deadline": self._call_deadline, **self._faults}
        names = rows, self._env_id, url
        return self._shard_type(*names, api="vector", token=self._token, kwargs=kwargs, **deadlines)

    def _row_arguments(self, rows: int) -> dict[str, Any]:
        return {"num_envs": rows, "autoreset_mode": self._mode.value, **self._faults, **self._kwargs}

    @cached_property
    def _single(self) -> Create:
        """The create message of a vector with one row, for requests about the environment."""
        return create_message(self.name, self._env_id, "vector", self._row_arguments(1))

    # Descriptions by the servers

    @cached_property
    def description(self) -> dict[str, Any]:
        """Description of the environment by the first server that answers."""
        found = self._first_answer(lambda shard: describe(shard.address, self._single, self._call_deadline))
        most, widest = found["max_rows"], -(-self.num_envs // len(self._urls))
        if widest > most:
            raise InvalidArgument(
                f"{self.name}: num_envs={self.num_envs} are {widest} rows a server, which takes {most}; "
                "spread them over more servers"
            )
        return found

    @cached_property
    def single_observation_space(self) -> Space[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Observation space of one row."""
        return space_of(self._shards[0], self.description, "observation_space")

    @cached_property
    def single_action_space(self) -> Space[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Action space of one row."""
        return space_of(self._shards[0], self.description, "action_space")

    @cached_property
    def observation_space(self) -> Space[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Observation space of all rows."""
        return batch_space(self.single_observation_space, self.num_envs)

    @cached_property
    def action_space(self) -> Space[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Action space of all rows."""
        return batch_space(self.single_action_space, self.num_envs)

    @cached_property
    def metadata(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Metadata of the environment, such as its render modes."""
        return {**self.description["metadata"], "autoreset_mode": self._mode}

    @cached_property
    def _choices(self) -> Discrete | None:
        """Action space of one row if it is ``Discrete`` and the server has a ``NativeVectorEnv``; else ``None``.

        The client checks a batch of such actions with one array operation, which is faster than row by row.
        """
        space = self.single_action_space
        return space if self.description["native"] and isinstance(space, Discrete) else None

    @cached_property
    def _narrow(self) -> np.dtype[Any]:
        """Smallest dtype that holds all discrete actions; batches are sent with it, so that frames are short."""
        space: Any = self._choices
        return np.result_type(np.min_scalar_type(space.start), np.min_scalar_type(space.start + space.n - 1))

    @cached_property
    def _calls(self) -> ShardCalls:
        return self._calls_of(ShardCalls, self._shards)

    def _calls_of(self, kind: type[ShardCalls], shards: Sequence[Any]) -> ShardCalls:
        spaces = self.single_observation_space, self.single_action_space
        return kind(shards, self._record, *spaces, self._rows_of_actions)

    # The interface of Gymnasium

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes in all rows, or in the rows that ``options["reset_mask"]`` selects.

        ``options["rows"]`` is a list with further options for each row.
        """
        adapt_converters()
        call = self._read_reset(seed, options)
        rows = np.ones(self.num_envs, np.bool_) if call.mask is None else call.mask
        self._calls.goes_on = not self._reproducible and self.description.get("goes_on", False)
        reset = RowsReset.by_hand(self._record, rows, call.seeds, call.options)
        self.closed = False
        try:
            results = self._calls.reset(reset)
        except BaseException as error:
            self._stopped(error)
            raise
        others = [one for one in self._shards if not rows[one.rows].any()]
        results += [ShardResult.without_step(one, copied(one.last), {}) for one in others]
        observations, infos = self._joined(in_order(results))
        self._record.adopt_reset(rows, infos.get("seq", self._record.seq))
        return observations, infos

    def step(self, actions: Any) -> Results:
        """Send an action to every row, and return the results of all rows."""
        sent = self._checked_actions(actions)
        resting = None if self.groups is None else self._group_faults.waiting
        try:
            stepped = self._stepped(self._calls.step(sent, resting), resting=resting)
        except BaseException as error:
            self._stopped(error)
            raise
        return stepped if self.groups is None else self._in_groups(stepped)

    def _stepped(
        self, results: list[ShardResult], rows: Rows | None = None, resting: Bools | None = None
    ) -> Results:
        """Join the shards' results of a step, reset lost rows as autoreset does, and update the record.

        ``rows`` are the rows in ``results``, ``None`` for all. The caller resets the rows that are ``resting``.
        """
        rewards, terminated, truncated = ends_of(results)
        over = terminated | truncated
        if self._mode is AutoresetMode.SAME_STEP and over.any():
            self._calls.reset_lost(results)
        observations, infos = self._joined(results)
        begun = self._record.end(over, rows)
        begun = begun if resting is None else begun & ~resting
        seq = self._record.seq if rows is None else self._record.seq[rows]
        self._record.adopt_step(begun, infos.get("seq", seq), rows)
        return observations, rewards, terminated, truncated, infos

    def render(self) -> tuple[Any, ...] | None:
        """Return the rendering of each row; for a lost row the last one that was fetched, or ``None``."""
        if self.render_mode is None:
            return super().render()
        drawn = (shard.picture() or (None,) * shard.size for shard in self._shards)
        return tuple(chain.from_iterable(drawn))

    def stream_state(self) -> tuple[dict[str, Any], ...]:
        """Return each row's state for :func:`envweave_gym.state_of`; for a lost row, only the counters."""
        return tuple(chain.from_iterable(map(self._states_of, self._shards)))

    def _states_of(self, shard: Shard) -> list[dict[str, Any]]:
        known = [self._record.counters(row) for row in shard.numbers]
        states = zip(shard.recall("state", known), known, strict=True)
        return [{**state, "episode": counters["episode"]} for state, counters in states]

    state = stream_state

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """Parse a model's text reply into the action of a row, on a server.

        If all rows are lost, any action is returned, because the next step reports the loss whatever the
        action.
        """
        if not self.description["parses"]:
            return read_action(self.single_action_space, text)
        for shard in self._shards:
            if shard.live:
                try:
                    return shard.ask("parse_action", [text, agent])
                except LOSSES as error:
                    shard.broken = shard.lost(error)
        gone = [shard for shard in self._shards if shard.gone]
        if not gone:
            return self._ask("parse_action", [text, agent])
        resumes = self._mode is not AutoresetMode.DISABLED or any(shard.broken for shard in gone)
        if self._record.has_begun and resumes:
            return placeholder(self.single_action_space)
        return gone[0].ask("parse_action", [text, agent])  # which says why nobody answers

    def call(self, name: str, *arguments: Any, **keywords: Any) -> tuple[Any, ...]:
        """Return the public attribute ``name`` of each row on its server; methods cannot be called."""
        if arguments or keywords:
            raise InvalidArgument(
                f"{self.name}: call({shown(name)}) takes no arguments here; methods of environments "
                "elsewhere are not called, but their public attributes can be read"
            )
        return tuple(chain.from_iterable(shard.ask("attribute", name) for shard in self._shards))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return a public attribute of each row: a number, text or array, or lists, tuples or dicts of these."""
        return self.call(name)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the sessions."""
        for shard in self._shards:
            shard.close()
        self._record.has_begun = False

    def __del__(self) -> None:
        """Do nothing: before Gymnasium 1.3 this closed the vector whenever garbage was collected.

        That failed where a constructor had raised, and waited for servers at the end of the process. The
        connections of a collected vector are closed by ``RemoteSession.__del__``; its sessions end later.
        """

    def _spec_arguments(self) -> dict[str, Any]:
        """Return the arguments for the spec of ``gymnasium.make_vec``."""
        return {"env_id": self._env_id, "urls": self._urls, "vectorization_mode": "vector_entry_point"} | (
            self._arguments()
        )

    def __reduce__(self) -> Any:
        return _again, (type(self), self._env_id, self._urls, self._arguments(), self.spec)

    def _arguments(self) -> dict[str, Any]:
        own = {"num_envs": self.num_envs, "autoreset_mode": self._mode.value, "token": self._token}
        own["group"] = None if self.groups is None else self.groups.size
        own["reproducible"] = self._reproducible
        return {**own, "call_deadline": self._call_deadline, **self._faults, **self._kwargs}

    # The parts of a call

    def _stopped(self, error: BaseException) -> None:
        """Record that ``error`` interrupted a call, so that the next call must be a reset.

        A refusal by a single server is not recorded, because such a server refuses before any row has moved.
        """
        if len(self._shards) > 1 or not isinstance(error, HARMLESS):
            self._record.stop(error)

    def _checked_actions(self, actions: Any) -> Any:
        """Return the actions to send; check them here, unless a single server checks them."""
        self._record.check_step(self.name)
        space = self._choices
        if space is not None:
            chosen = checked_choices(self.name, actions, self.num_envs, space, self.action_space)
            return (chosen + space.start if space.start else chosen).astype(self._narrow)
        actions = as_batch(actions)
        if len(self._shards) > 1 or not (self._shards[0].live and travels(actions)):
            self._rows_of_actions(actions)
        return actions

    def _rows_of_actions(self, actions: Any) -> list[Any]:
        if self._choices is not None:  # _checked_actions has checked them
            return list(actions)
        return super()._rows_of_actions(actions)

    def _joined(self, results: Sequence[ShardResult]) -> tuple[Any, dict[str, Any]]:
        """Join the observations and infos of all shards, in the order of the rows."""
        if len(results) == 1:
            return results[0].observation, results[0].infos
        observations = joined(self.single_observation_space, [one.observation for one in results])
        return observations, merged([one.infos for one in results], [one.shard.size for one in results])

    # Questions

    def _ask(self, question: str, argument: Any) -> Any:
        """Send a question to a live shard; if there is none, to a new environment made for this question.

        A question changes no state, such as how to parse a reply.
        """
        for shard in self._shards:
            if shard.live:
                return shard.ask(question, argument)
        return self._first_answer(lambda shard: self._ask_another(shard, question, argument))

    def _ask_another(self, shard: Shard, question: str, argument: Any) -> Any:
        session = RemoteSession(shard.address, self._single, self._call_deadline)
        try:
            return session.ask(question, argument)
        finally:
            session.close()

    def _first_answer(self, ask: Callable[[Shard], Any]) -> Any:
        """Call ``ask`` with one shard after the other; return the first answer from a server that can be reached."""
        for shard in self._shards[:-1]:
            try:
                return ask(shard)
            except LOSSES as error:
                _log.debug("%s does not answer: %s", shard.address.url, error)
        return ask(self._shards[-1])


def _spread(urls: Sequence[str], rows: int) -> list[tuple[str, slice]]:
    """Divide the rows among the servers, in order; the sizes of two shards differ by at most one."""
    bounds = [rows * index // len(urls) for index in range(len(urls) + 1)]
    parts = zip(urls, bounds, bounds[1:], strict=False)
    return [(url, slice(first, stop)) for url, first, stop in parts if first < stop]


def _again(
    kind: type[RemoteVectorEnv], env_id: str, urls: list[str], arguments: dict[str, Any], spec: Any
) -> RemoteVectorEnv:
    env = kind(env_id, urls, **arguments)
    env.spec = spec
    return env
