"""PettingZoo games in tinker-cookbook's ``rl.train``: ``Config(dataset_builder=GameDatasetBuilder(…), …)``.

A group is one role in several games of one seed, since the cookbook compares rewards in a group, and those of
different roles cannot be compared. The groups of a seed's roles play together, one seat of each in every game.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import envweave_gym
from envweave_gym.core.faults import InvalidArgument, need, shown
from envweave_gym.integrations.chat_episode import ChatRules, ChatTurn, Ending, EpisodeLost
from envweave_gym.integrations.chat_game import ChatGame
from envweave_gym.integrations.own_thread import OwnThread
from envweave_gym.integrations.tinker_cookbook import (
    HELD_OUT,
    SeedDataset,
    check_seeds,
    closed,
    cookbook_messages,
    message_step,
    metrics_of,
    renderer_of,
    tag_of,
    token_env,
)

_PURPOSE = "envweave_gym.integrations.tinker_cookbook_games"
chz = need("chz", "cookbook", _PURPOSE)
_exceptions = need("tinker_cookbook.exceptions", "cookbook", _PURPOSE)
_renderers = need("tinker_cookbook.renderers", "cookbook", _PURPOSE)
_message_env = need("tinker_cookbook.rl.message_env", "cookbook", _PURPOSE)
_rl_types = need("tinker_cookbook.rl.types", "cookbook", _PURPOSE)


@dataclass(frozen=True)
class GameSpec:
    """What games of one seed share; it can be pickled."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    seed: int
    roles: tuple[str, ...]
    meeting: str
    """A name that is the same for the groups whose seats play together."""
    rules: ChatRules = field(default_factory=ChatRules)
    patience: float = 600.0
    """Limit in seconds of the wait for the other roles, at the start and at every turn."""

    def chat_game(self) -> ChatGame:
        """Return a game that has not begun."""
        return ChatGame(
            partial(envweave_gym.make, self.env_id, **self.env_kwargs), self.seed, rules=self.rules
        )


class Table:
    """One game whose seats belong to several rollouts of one event loop. If it is lost, all of them fail."""

    def __init__(self, spec: GameSpec) -> None:
        self._spec, self._game = spec, spec.chat_game()
        self._thread = OwnThread(f"{spec.env_id} seed={spec.seed}")
        self._changed = asyncio.Event()
        self._lost: Exception | None = None
        self._turns: dict[str, bool] | None = None
        """Whether each role has a turn or is at its end; ``None`` before the game begins."""
        self.seated: set[str] = set()
        self._left: set[str] = set()

    @property
    def is_open(self) -> bool:
        """Whether a role may still sit down."""
        return self._lost is None and len(self.seated) < len(self._spec.roles)

    async def begin(self, role: str) -> None:
        """Begin the game if this role was the last to sit down, then wait for the first turn of the role."""
        if len(self.seated) == len(self._spec.roles):
            await self._change(self._game.begin)
        await self._until_turn(role)

    async def reply(self, role: str, text: str) -> None:
        """Reply for the role, then wait for its next turn."""
        await self._change(partial(self._game.reply, role, text))
        await self._until_turn(role)

    async def give_up(self, role: str) -> None:
        """End the game for the others because this role cannot go on."""
        await self._change(partial(self._game.leave, role))

    def take_turn(self, role: str) -> ChatTurn:
        """Return what the role has earned since its last turn."""
        return self._game.take_turn(role)

    def messages(self, role: str) -> list[dict[str, Any]]:
        """Return the history of the role."""
        return self._game.messages(role)

    def leave(self, role: str, *, over: bool) -> Future[None] | None:
        """Give the seat back; return the future of the game's closing if it was the last one.

        If the role's part is not ``over``, the game is lost for those who still play.
        """
        if not over:
            self._lose(EpisodeLost(f"{self._spec.env_id}: the rollout of {role} ended before the game"))
        self._left.add(role)
        if self._left < self.seated:
            return None
        closing = self._thread.call(self._game.close)
        self._thread.end()
        return closing

    async def _change(self, change: Callable[[], None]) -> None:
        """Run a change of the game in its thread, and wake those who wait for it."""
        try:
            self._turns = await asyncio.wrap_future(self._thread.call(partial(self._changed_by, change)))
        except BaseException as error:
            self._lose(EpisodeLost(f"{self._spec.env_id}: {type(error).__name__}: {error}"))
            raise
        self._wake()

    def _changed_by(self, change: Callable[[], None]) -> dict[str, bool]:
        change()
        game = self._game
        return {one: game.ending(one) is not None or game.must_reply(one) for one in self._spec.roles}

    async def _until_turn(self, role: str) -> None:
        try:
            async with asyncio.timeout(self._spec.patience):
                while self._lost is None and not (self._turns and self._turns[role]):
                    await self._changed.wait()
        except TimeoutError:
            self._lose(EpisodeLost(self._why_late(role)))
        if self._lost is not None:
            raise EpisodeLost(str(self._lost)) from self._lost

    def _lose(self, error: Exception) -> None:
        self._lost = self._lost or error
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _why_late(self, role: str) -> str:
        spec = self._spec
        waited = f"{spec.env_id}: {role} has waited {spec.patience:g} s for "
        if self._turns is not None:
            return waited + "a turn; give a higher patience= if replies take as long"
        missing = ", ".join(one for one in spec.roles if one not in self.seated)
        return (
            waited + f"{missing or 'the game'}; the groups of all roles must run at once, in one event loop"
        )


_open_tables: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, list[Table]]] = WeakKeyDictionary()
"""Tables with free seats, by event loop and meeting."""


def sit_down(spec: GameSpec, role: str) -> Table:
    """Return a table with the role's seat taken: one where others of the meeting wait, else a new one."""
    meetings = _open_tables.setdefault(asyncio.get_running_loop(), {})
    tables = [table for table in meetings.pop(spec.meeting, []) if table.is_open]
    table = next((one for one in tables if role not in one.seated), None)
    if table is None:
        table = Table(spec)
        tables.append(table)
    table.seated.add(role)
    if still_open := [one for one in tables if one.is_open]:
        meetings[spec.meeting] = still_open
    return table


class SeatMessageEnv(_message_env.MessageEnv):
    """One role in one game. A lost game raises in all its seats, so their rollouts fail and can be repeated."""

    def __init__(self, spec: GameSpec, role: str) -> None:
        self._spec, self._role = spec, role
        self._table: Table | None = None
        self.ending: Ending | None = None
        """Why the role's part of the game is over; ``None`` while it is not."""
        self.first_turn: ChatTurn | None = None
        """The result of a game that was over before the role had a turn."""
        self.example_id = f"{spec.env_id} seed={spec.seed} {role}"

    async def initial_observation(self) -> list[dict[str, Any]]:
        """Sit down at a table, wait for the other roles and for the first turn, and return the prompt."""
        self._table = table = sit_down(self._spec, self._role)
        await table.begin(self._role)
        turn = table.take_turn(self._role)
        if turn.ending is not None:
            self.first_turn, self.ending = turn, turn.ending
        return cookbook_messages(table.messages(self._role))

    async def step(self, message: Any) -> Any:
        """Reply, wait for the next turn or the end, and return what the role has earned until then."""
        table = self._at_table()
        text = _renderers.get_text_content(message)
        await table.reply(self._role, text)
        turn = table.take_turn(self._role)
        self.ending = turn.ending
        return message_step(turn, table.messages(self._role), text)

    async def give_up(self) -> None:
        """End the game for the others, if this role's rollout is over before its game is."""
        if self.ending is None:
            self.ending = Ending.PARSE_ERROR
            await self._at_table().give_up(self._role)

    def close(self) -> Future[None] | None:
        """Leave the table; return the future of the game's closing if this was the last seat."""
        table, self._table = self._table, None
        return None if table is None else table.leave(self._role, over=self.ending is not None)

    def _at_table(self) -> Table:
        if self._table is None:
            raise RuntimeError(f"{self.example_id}: initial_observation comes first")
        return self._table


class SeatEnv(_message_env.EnvFromMessageEnv):
    """A seat as an environment of tokens; a reply that is cut off ends the game for the others, too."""

    async def initial_observation(self) -> Any:
        """Return the prompt; a game without a turn for the role is over at once."""
        first = await super().initial_observation()
        turn = self.message_env.first_turn
        if turn is not None:
            return _rl_types.InitialObservationOverflow(turn.reward, metrics=metrics_of(turn))
        if isinstance(first, _rl_types.InitialObservationOverflow):
            await self.message_env.give_up()
        return first

    async def step(self, action: Any, *, extra: Any = None) -> Any:
        """Play a reply of tokens."""
        result = await super().step(action, extra=extra)
        if result.episode_done:
            await self.message_env.give_up()
        return result


@dataclass
class RoleGroupBuilder(_rl_types.EnvGroupBuilder):
    """The seats of one role in ``group_size`` games of one seed; it can be pickled."""

    spec: GameSpec
    role: str
    group_size: int
    renderer: Any
    max_trajectory_tokens: int | None = None
    _seats: list[SeatMessageEnv] = field(default_factory=list[SeatMessageEnv], repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but the open games."""
        return {**self.__dict__, "_seats": []}

    async def make_envs(self) -> Sequence[Any]:
        """Return the seats of the group, which sit down when their rollouts begin."""
        new = [SeatMessageEnv(self.spec, self.role) for _ in range(self.group_size)]
        self._seats += new
        limit, rules = self.max_trajectory_tokens, self.spec.rules
        return [token_env(SeatEnv, seat, self.renderer, rules, limit) for seat in new]

    async def compute_group_rewards(self, trajectory_group: list[Any], env_group: Sequence[Any]) -> list[Any]:
        """Give the mean reward of the others to seats whose game another role ended, so that these teach nothing."""
        if not any(step.ac.tokens for one in trajectory_group for step in one.transitions):
            raise _exceptions.AllTrajectoriesFailedError(f"{self.role} had no turn in any game of its group")
        earned = [sum(step.reward for step in one.transitions) for one in trajectory_group]
        counts = [env.message_env.ending is not Ending.OTHERS for env in env_group]
        counted = [reward for reward, good in zip(earned, counts, strict=True) if good]
        mean = sum(counted) / len(counted) if counted else 0.0
        return [
            (0.0, {"uncounted": 0.0}) if good else (mean - reward, {"uncounted": 1.0})
            for reward, good in zip(earned, counts, strict=True)
        ]

    async def cleanup(self) -> None:
        """Leave the tables; games that are not over are lost for the other roles."""
        seats, self._seats = self._seats, []
        futures = [seat.close() for seat in seats]
        await closed([one for one in futures if one is not None], self.spec.env_id)

    def logging_tags(self) -> list[str]:
        """Return the names under which metrics are logged: the game, and the role in it."""
        return [tag_of(self.spec.env_id), self.role]


@chz.chz
class GameDatasetBuilder(_rl_types.RLDatasetBuilder):
    """The games of one ID for ``rl.train``, with a group for every role; one adapter plays all roles."""

    env_id: str
    """An ID of a game, AEC or parallel, as for :func:`envweave_gym.make`."""
    model_name: str
    """The model whose tokenizer the renderer uses: that of ``Config``."""
    renderer_name: str
    env_kwargs: dict[str, Any] = chz.field(default_factory=dict)
    """Arguments of :func:`envweave_gym.make`; plain data, as they are pickled."""
    batches: int = 50
    seeds_per_batch: int = 4
    """The number of different games in a batch; the groups are as many times the roles."""
    group_size: int = 8
    test_seeds: int = 16
    """The number of held-out games; 0 for none."""
    seed: int = 0
    max_turns: int = 16
    invalid_replies: int = 0
    invalid_reward: float = 0.0
    """The reward of a reply that ends its game: it names no action, or is too long. The other roles do not count."""
    patience: float = 600.0
    """Limit in seconds of a wait for the other roles; then the game is lost."""
    max_trajectory_tokens: int | None = None

    async def __call__(self) -> tuple[Any, Any]:
        """Return the data sets for training and for evaluation."""
        check_seeds(self.seed, self.batches * self.seeds_per_batch)
        if self.patience <= 0:
            raise InvalidArgument(f"patience={shown(self.patience)} is no time to wait; give seconds above 0")
        roles = await asyncio.to_thread(roles_of, self.env_id, dict(self.env_kwargs))
        renderer = renderer_of(self.renderer_name, self.model_name)
        rules = ChatRules(self.max_turns, self.invalid_replies, self.invalid_reward)
        run = uuid4().hex

        def builders(size: int, seed: int) -> list[Any]:
            meeting = f"{run} {seed}"
            spec = GameSpec(self.env_id, dict(self.env_kwargs), seed, roles, meeting, rules, self.patience)
            return [
                RoleGroupBuilder(spec, role, size, renderer, self.max_trajectory_tokens) for role in roles
            ]

        of_training, held_out = partial(builders, self.group_size), partial(builders, 1)
        return (
            SeedDataset(self.batches, self.seeds_per_batch, self.seed, of_training),
            SeedDataset(1, self.test_seeds, HELD_OUT, held_out) if self.test_seeds else None,
        )


def roles_of(env_id: str, env_kwargs: dict[str, Any]) -> tuple[str, ...]:
    """Return the agents of a game, from a game that is made and closed for it."""
    game = envweave_gym.make(env_id, **env_kwargs)
    try:
        roles = getattr(game, "possible_agents", None)
    finally:
        game.close()
    if not roles:
        raise InvalidArgument(f"{env_id} is no game of several agents; use EnvDatasetBuilder")
    return tuple(roles)
