"""Environments and games in tinker-cookbook's ``rl.train``: ``Config(dataset_builder=EnvDatasetBuilder(…), …)``.

Every ID of this package whose actions can be read from text is trained on without code of its own. A group is one role
in several episodes of one seed, since the cookbook compares rewards in a group, and those of different roles cannot be
compared. The groups of a seed's roles play together, one role of each in every episode; an environment has one role.
Needs the extra ``cookbook``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import envweave_gym
from envweave_gym.chat import AsyncChatGame, ChatGame, ChatMessage, ChatRules, ChatTurn, Ending, text_of
from envweave_gym.core.faults import InvalidArgument, need, shown

_PURPOSE = "envweave_gym.integrations.tinker_cookbook"
chz = need("chz", "cookbook", _PURPOSE)
_exceptions = need("tinker_cookbook.exceptions", "cookbook", _PURPOSE)
_renderers = need("tinker_cookbook.renderers", "cookbook", _PURPOSE)
_message_env = need("tinker_cookbook.rl.message_env", "cookbook", _PURPOSE)
_rl_types = need("tinker_cookbook.rl.types", "cookbook", _PURPOSE)
_tokenizers = need("tinker_cookbook.tokenizer_utils", "cookbook", _PURPOSE)

HELD_OUT = 2**30
"""The first seed of held-out episodes; those of training are below it."""
CLOSE_S = 30.0
"""Limit in seconds of the wait until the environments of a group are closed; those in a call that hangs stay open."""
LOGGED_CHARACTERS = 2_000
_log = logging.getLogger(__name__)


def use_tokenizer(model_name: str, folder: str | Path) -> None:
    """Let the cookbook read the tokenizer of a model from a folder, for models that no hub has, as local ones."""

    @cache
    def load() -> Any:
        transformers = need("transformers", "cookbook", _PURPOSE)
        return transformers.AutoTokenizer.from_pretrained(str(folder))

    _tokenizers.register_tokenizer(model_name, load)


def renderer_of(renderer_name: str, model_name: str) -> Any:
    """Return the cookbook's renderer of that name; it can be pickled."""
    return _renderers.get_renderer(
        renderer_name, _tokenizers.get_tokenizer(model_name), model_name=model_name
    )


# Episodes


@dataclass(frozen=True)
class EpisodeSpec:
    """The settings of all episodes of one seed; it can be pickled."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    seed: int
    roles: tuple[str, ...]
    match_id: str
    """Equal for the groups whose roles play together."""
    rules: ChatRules = field(default_factory=ChatRules)
    instruction: str = ""
    patience: float = 600.0

    @property
    def name(self) -> str:
        """The name of the task in logs."""
        return f"{self.env_id} seed={self.seed}"

    def episode(self) -> AsyncChatGame:
        """Return an episode that has not begun, whose environment is not made yet."""
        return AsyncChatGame(
            partial(chat_game, self.env_id, self.env_kwargs, self.rules, self.instruction),
            self.roles,
            name=self.name,
            seed=self.seed,
            patience=self.patience,
        )


def chat_game(
    env_id: str, env_kwargs: Mapping[str, Any], rules: ChatRules | None = None, instruction: str = ""
) -> ChatGame:
    """Make an environment or a game, and return it as a chat."""
    return ChatGame(envweave_gym.make(env_id, **env_kwargs), rules, instruction=instruction)


_open_episodes: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, list[AsyncChatGame]]] = (
    WeakKeyDictionary()
)
"""Episodes that roles may still join, by event loop and match ID."""


def join_episode(spec: EpisodeSpec, role: str) -> AsyncChatGame:
    """Join an episode of the match that still lacks the role, or else a new one."""
    matches = _open_episodes.setdefault(asyncio.get_running_loop(), {})
    episodes = [one for one in matches.pop(spec.match_id, []) if one.is_open]
    episode = next((one for one in episodes if role not in one.joined), None)
    if episode is None:
        episode = spec.episode()
        episodes.append(episode)
    episode.join(role)
    if still_open := [one for one in episodes if one.is_open]:
        matches[spec.match_id] = still_open
    return episode


class RoleMessageEnv(_message_env.MessageEnv):
    """One role in one episode. A lost episode raises in all its roles, so their rollouts fail and can be repeated.

    ``rollout_error_tolerance=True`` in the cookbook's ``Config`` repeats failed rollouts with new environments.
    """

    def __init__(self, spec: EpisodeSpec, role: str) -> None:
        self._spec, self._role = spec, role
        self._episode: AsyncChatGame | None = None
        self.ending: Ending | None = None
        """Why the role's part of the episode is over; ``None`` while it is not."""
        self.first_turn: ChatTurn | None = None
        """The result of an episode that was over before the role had a turn."""
        self.example_id = spec.name if len(spec.roles) == 1 else f"{spec.name} {role}"
        """The name of the task in the cookbook's logs."""

    async def initial_observation(self) -> list[dict[str, Any]]:
        """Join an episode, wait for the other roles and for the first turn, and return the prompt."""
        self._episode = episode = join_episode(self._spec, self._role)
        turn = await episode.begin(self._role)
        if turn.ending is not None:
            self.first_turn, self.ending = turn, turn.ending
        return cookbook_messages(episode.messages(self._role))

    async def step(self, message: Any) -> Any:
        """Reply, wait for the next turn or the end, and return what the role has earned until then."""
        episode = self._joined()
        text = _renderers.get_text_content(message)
        turn = await episode.reply(self._role, text)
        self.ending = turn.ending
        history, logs = cookbook_messages(episode.messages(self._role)), {"reply": text[:LOGGED_CHARACTERS]}
        over = turn.ending is not None
        return _message_env.MessageStepResult(turn.reward, over, history, metrics_of(turn), logs)

    async def give_up(self) -> None:
        """End the episode for the others, if this role's rollout is over before its part is."""
        if self.ending is None:
            self.ending = Ending.PARSE_ERROR
            await self._joined().give_up(self._role)

    def close(self) -> Future[None] | None:
        """Leave the episode; return the future of the environment's closing if this was the last role."""
        episode, self._episode = self._episode, None
        return None if episode is None else episode.leave(self._role, over=self.ending is not None)

    def _joined(self) -> AsyncChatGame:
        if self._episode is None:
            raise RuntimeError(f"{self.example_id}: initial_observation comes first")
        return self._episode


class RoleEnv(_message_env.EnvFromMessageEnv):
    """A role as an environment of tokens; a reply that is cut off ends the episode for the others, too."""

    async def initial_observation(self) -> Any:
        """Return the prompt; an episode without a turn for the role is over at once."""
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
class EnvGroupBuilder(_rl_types.EnvGroupBuilder):
    """One role in ``group_size`` episodes that reset with the same seed, so that their rewards can be compared.

    It can be pickled: environments are made by the first call of an episode, not before.
    """

    spec: EpisodeSpec
    role: str
    group_size: int
    renderer: Any
    max_trajectory_tokens: int | None = None
    _envs: list[RoleMessageEnv] = field(default_factory=list[RoleMessageEnv], repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but the open environments."""
        return {**self.__dict__, "_envs": []}

    async def make_envs(self) -> Sequence[Any]:
        """Return the environments of the group, which are not made yet."""
        new = [RoleMessageEnv(self.spec, self.role) for _ in range(self.group_size)]
        self._envs += new
        price = self.spec.rules.invalid_reward  # a reply that is too long costs what an invalid one does
        return [
            RoleEnv(
                self.renderer,
                env,
                failed_parse_reward=price,
                context_overflow_reward=price,
                max_trajectory_tokens=self.max_trajectory_tokens,
            )
            for env in new
        ]

    async def compute_group_rewards(self, trajectory_group: list[Any], env_group: Sequence[Any]) -> list[Any]:
        """Give the mean reward of the others to roles whose part another one ended, so that it teaches nothing."""
        if len(self.spec.roles) == 1:
            return await super().compute_group_rewards(trajectory_group, env_group)
        if not any(step.ac.tokens for one in trajectory_group for step in one.transitions):
            raise _exceptions.AllTrajectoriesFailedError(f"{self.role} had no turn in any game of its group")
        earned = [sum(step.reward for step in one.transitions) for one in trajectory_group]
        trainable = [env.message_env.ending is not Ending.OTHERS for env in env_group]
        counted = [reward for reward, good in zip(earned, trainable, strict=True) if good]
        mean = sum(counted) / len(counted) if counted else 0.0
        return [
            (0.0, {"ended_by_others": 0.0}) if good else (mean - reward, {"ended_by_others": 1.0})
            for reward, good in zip(earned, trainable, strict=True)
        ]

    async def cleanup(self) -> None:
        """Leave the episodes, which are lost for other roles if they are not over, and close the environments."""
        envs, self._envs = self._envs, []
        futures = [env.close() for env in envs]
        await _closed([one for one in futures if one is not None], self.spec.env_id)

    def logging_tags(self) -> list[str]:
        """Return the names under which metrics are logged: that of the ID, and in a game the role."""
        tag = self.spec.env_id.rpartition("/")[2]
        return [tag] if len(self.spec.roles) == 1 else [tag, self.role]


async def _closed(futures: Sequence[Any], name: str) -> None:
    """Wait until environments are closed, and log those that cannot be closed; ``name`` is theirs."""
    if not futures:
        return
    waiting = [asyncio.wrap_future(one) for one in futures]
    done, hanging = await asyncio.wait(waiting, timeout=CLOSE_S)
    if hanging:
        _log.warning("%s: %d environments are still in a call after %g s", name, len(hanging), CLOSE_S)
    for one in done:
        if not one.cancelled() and (error := one.exception()):
            _log.warning("%s: closing an environment failed: %s", name, error)


# Data sets


class SeedDataset(_rl_types.RLDataset):
    """Batches of group builders: task ``i`` of all has the seed ``first_seed + i``."""

    def __init__(
        self,
        batches: int,
        groups_per_batch: int,
        first_seed: int,
        builders: Callable[[int], list[Any]],
    ) -> None:
        """Take a function that returns the builders of one seed: one for each role."""
        self._batches, self._groups, self._first = batches, groups_per_batch, first_seed
        self._builders = builders

    def __len__(self) -> int:
        """Return the number of batches."""
        return self._batches

    def get_batch(self, index: int) -> list[Any]:
        """Return the builders of one batch."""
        first = self._first + index * self._groups
        return [builder for seed in range(first, first + self._groups) for builder in self._builders(seed)]


@chz.chz
class EnvDatasetBuilder(_rl_types.RLDatasetBuilder):
    """The tasks of one ID for ``rl.train``: seeds for training, and held-out seeds for evaluation.

    Of a game each seed has a group for every role, and one adapter plays all roles.
    """

    env_id: str
    """An ID as for :func:`envweave_gym.make`: an environment, or a game, AEC or parallel."""
    model_name: str
    """The model whose tokenizer the renderer uses: that of ``Config``."""
    renderer_name: str
    env_kwargs: dict[str, Any] = chz.field(default_factory=dict)
    """Arguments of :func:`envweave_gym.make`, such as ``backend``; plain data, as they are pickled."""
    test_kwargs: dict[str, Any] = chz.field(default_factory=dict)
    """Arguments that are different in held-out episodes, such as ``{"split": "test"}``."""
    batches: int = 50
    groups_per_batch: int = 8
    """The number of seeds in a batch; a game has as many groups for each of its roles."""
    group_size: int = 8
    test_groups: int = 32
    """The number of held-out episodes, each of another seed; 0 for none."""
    seed: int = 0
    """The seed of the first group."""
    max_turns: int = 16
    """Limit of replies of each role."""
    invalid_replies: int = 0
    """Replies that name no action after which the model is asked again; one more ends the episode."""
    invalid_reward: float = 0.0
    """The reward of a reply that ends its episode: it names no action, or is too long. Other roles do not count."""
    instruction: str = ""
    """Text before the first message; by default the form of an action, if the environment writes no messages."""
    patience: float = 600.0
    """Limit in seconds of a wait for the other roles of a game; then the game is lost."""
    max_trajectory_tokens: int | None = None

    async def __call__(self) -> tuple[Any, Any]:
        """Return the data sets for training and for evaluation."""
        check_seeds(self.seed, self.batches * self.groups_per_batch)
        if self.patience <= 0:
            raise InvalidArgument(f"patience={shown(self.patience)} is no time to wait; give seconds above 0")
        roles = await asyncio.to_thread(roles_of, self.env_id, dict(self.env_kwargs), self.instruction)
        rules = ChatRules(self.max_turns, self.invalid_replies, self.invalid_reward)
        renderer = renderer_of(self.renderer_name, self.model_name)
        run = uuid4().hex

        def builders(kwargs: dict[str, Any], size: int, seed: int) -> list[Any]:
            shared = (rules, self.instruction, self.patience)
            spec = EpisodeSpec(self.env_id, kwargs, seed, roles, f"{run} {seed}", *shared)
            return [EnvGroupBuilder(spec, role, size, renderer, self.max_trajectory_tokens) for role in roles]

        training = partial(builders, dict(self.env_kwargs), self.group_size)
        held_out = partial(builders, {**self.env_kwargs, **self.test_kwargs}, 1)
        return (
            SeedDataset(self.batches, self.groups_per_batch, self.seed, training),
            SeedDataset(1, self.test_groups, HELD_OUT, held_out) if self.test_groups else None,
        )


def roles_of(env_id: str, env_kwargs: dict[str, Any], instruction: str = "") -> tuple[str, ...]:
    """Return the roles of an ID, from an environment that is made and closed for it.

    Without an instruction, raise ``InvalidArgument`` if no reply can name an action.
    """
    with closing(chat_game(env_id, env_kwargs)) as game:
        if not instruction:
            game.check()
        return game.roles


def check_seeds(first: int, number: int) -> None:
    """Raise ``InvalidArgument`` if seeds of training are negative or reach those that are held out."""
    if first < 0 or first + number > HELD_OUT:
        raise InvalidArgument(
            f"seed={shown(first)} and {number} groups: seeds of training are between 0 and {HELD_OUT - 1}"
        )


# Messages and metrics


def metrics_of(turn: ChatTurn) -> dict[str, float]:
    """Return the metrics of a turn, with the reason of the end as ``stop/…`` in the cookbook's words."""
    if turn.ending is None:
        return dict(turn.metrics)
    reason = Ending.MAX_TURNS if turn.ending is Ending.OTHERS else turn.ending
    return {**turn.metrics, f"{_rl_types.STOP_METRIC_PREFIX}{reason}": 1.0}


def cookbook_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return messages in the form of the cookbook's renderers."""
    return [_cookbook_message(message) for message in messages]


def _cookbook_message(message: ChatMessage) -> dict[str, Any]:
    rest = {key: message[key] for key in ("tool_call_id", "name") if key in message}
    if calls := message.get("tool_calls"):
        rest["tool_calls"] = [_tool_call(call) for call in calls]
    return {"role": message["role"], "content": text_of(message), **rest}


def _tool_call(call: dict[str, Any]) -> Any:
    body = call["function"]
    arguments = body["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = _renderers.ToolCall.FunctionBody(name=body["name"], arguments=text)
    return _renderers.ToolCall(function=function, id=call.get("id"))
